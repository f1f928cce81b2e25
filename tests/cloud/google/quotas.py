"""What a project may have of Compute Engine, and what its node pools use of it.

The numbers are made up; that the container API refuses at once what goes beyond, with 403, and in these
words, is not: https://github.com/googlecodelabs/feedback/issues/950 shows one with two metrics.
"""

from google.cloud.container_v1 import types

from . import machines
from .api_errors import ApiError
from .world import Project

REGIONAL = {
    "CPUS": 72.0,
    "PREEMPTIBLE_CPUS": 72.0,
    "IN_USE_ADDRESSES": 69.0,
    "STATIC_ADDRESSES": 8.0,
    "DISKS_TOTAL_GB": 4096.0,
    "SSD_TOTAL_GB": 2048.0,
    "NVIDIA_T4_GPUS": 8.0,
    "PREEMPTIBLE_NVIDIA_T4_GPUS": 8.0,
    "NVIDIA_L4_GPUS": 8.0,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 8.0,
    "NVIDIA_V100_GPUS": 0.0,
    "NVIDIA_A100_GPUS": 0.0,
}
GLOBAL = {"GPUS_ALL_REGIONS": 8.0, "CPUS_ALL_REGIONS": 128.0, "NETWORKS": 15.0, "FIREWALLS": 200.0}


def region_of(location: str) -> str:
    """Return the region of a zone, or the region itself."""
    return location.rsplit("-", 1)[0] if location.count("-") == 2 else location


def required(pool: types.NodePool, count: int, locations: int) -> dict[str, float]:
    """Return what that many nodes of a pool (in each of its zones) use."""
    count *= max(1, locations)
    preemptible = "PREEMPTIBLE_" if pool.config.spot or pool.config.preemptible else ""
    words = (pool.config.machine_type or "e2-medium").split("-")
    cpus = float(words[-1]) if words[-1].isdigit() else 2.0
    used = {f"{preemptible}CPUS": cpus * count, "IN_USE_ADDRESSES": float(count)}
    used["CPUS_ALL_REGIONS"] = cpus * count
    size = float((pool.config.disk_size_gb or 100) * count)
    standard = pool.config.disk_type == "pd-standard"
    used["DISKS_TOTAL_GB" if standard else "SSD_TOTAL_GB"] = size
    for each in pool.config.accelerators:
        metric = each.accelerator_type.removeprefix("nvidia-tesla-").removeprefix("nvidia-").upper()
        gpus = float(each.accelerator_count * count)
        used[f"{preemptible}NVIDIA_{metric}_GPUS"] = gpus
        used["GPUS_ALL_REGIONS"] = gpus
    return used


def usage(container, project: str, region: str | None) -> dict[str, float]:
    """Return what a project's node pools use in a region, or in all."""
    total: dict[str, float] = {}
    for location, pool in container.pools(project):
        if region in (None, region_of(location)):
            count = machines.size(container.store, pool)
            for metric, each in required(pool, count, len(pool.locations)).items():
                total[metric] = total.get(metric, 0.0) + each
    return total


def limit(project: Project, region: str | None, metric: str) -> float | None:
    """Return a project's limit: its own, or what every project has; None for what has none."""
    return project.quotas.get((region, metric), (GLOBAL if region is None else REGIONAL).get(metric))


def check(container, project: Project, location: str, pool: types.NodePool, count: int) -> None:
    """Refuse nodes that go beyond a quota.

    Raises:
        ApiError: They do; it names each metric.
    """
    region = region_of(location)
    short = []
    zones = len(pool.locations) or (1 if location.count("-") == 2 else 3)
    for metric, asked in required(pool, count, zones).items():
        for where, word in ((region, "regional"), (None, "project")):
            most = limit(project, where, metric)
            if most is None:
                continue
            free = most - usage(container, project.id, where).get(metric, 0.0)
            if asked > free:
                short.append(
                    f'Insufficient {word} quota to satisfy request: resource "{metric}": request requires '
                    f"'{asked}' and is short '{asked - free}'. project has a quota of '{most}' with '{free}' "
                    "available. View and manage quotas at "
                    f"https://console.cloud.google.com/iam-admin/quotas?usage=USED&project={project.id}."
                )
    if short:
        words = (
            short[0] if len(short) == 1 else "".join(f"\n\t({n}) {each}" for n, each in enumerate(short, 1))
        )
        raise ApiError("PERMISSION_DENIED", words)
