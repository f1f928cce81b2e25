"""What a project may have of Compute Engine, held against what a cluster asks for.

New projects may often have no GPU at all: a GPU needs a quota in its region and one of all regions together.
"""

from collections.abc import Iterator

from clouds.cluster_preflight import failed
from clouds.google.machines import SYSTEM_DISK_GB, SYSTEM_MACHINE
from clouds.google.session import find
from clouds.google.stack import GkePlan
from kitlib.clusters.checks import Check, ok

_SSD = "SSD_TOTAL_GB"  # balanced disks count as these


def check(plan: GkePlan, *, cluster: bool = True) -> Iterator[Check]:
    """Yield a check for each quota that a cluster draws on.

    Args:
        plan: The cluster.
        cluster: Whether it is to be made; else only its training machines are, beside what there is.
    """
    session = plan.session
    region = session.rest("compute", "regions.get", project=session.project, region=session.region)
    everywhere = session.rest("compute", "projects.get", project=session.project)
    places = ((session.region, region), ("all regions", everywhere))
    asked = required(plan, cluster=cluster)
    for where, found in places:
        free = {each["metric"]: (each["limit"], each["usage"]) for each in found.get("quotas", ())}
        for metric, count in asked.items():
            if metric not in free:
                continue
            limit, used = free[metric]
            name, room = f"quota {metric}", limit - used
            words = f"{count:g} needed, {room:g} of {limit:g} free in {where}"
            yield ok(name, words) if count <= room else failed(name, words, _fix(plan, metric, room))


def required(plan: GkePlan, *, cluster: bool = True) -> dict[str, float]:
    """Count the quotas that a cluster uses, by their names in Compute Engine."""
    machines = plan.machines
    spot = "PREEMPTIBLE_" if machines.spot else ""
    system = int(cluster)  # machines for what Kubernetes itself runs
    system_cores = system * _cores(plan, SYSTEM_MACHINE)
    asked = {"CPUS": float(system_cores)}
    cores = _cores(plan, machines.machine_type) * machines.nodes
    asked[f"{spot}CPUS"] = asked.get(f"{spot}CPUS", 0.0) + cores
    asked["CPUS_ALL_REGIONS"] = system_cores + cores
    asked["IN_USE_ADDRESSES"] = float(system + machines.nodes)
    asked[_SSD] = float(system * SYSTEM_DISK_GB + machines.disk_gb * machines.nodes)
    if cluster and not plan.network:
        asked["NETWORKS"] = 1.0
    if machines.accelerator:
        kind = machines.accelerator.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
        gpus = float(machines.gpus * machines.nodes)
        asked[f"{spot}NVIDIA_{kind}_GPUS"] = gpus
        asked["GPUS_ALL_REGIONS"] = gpus
    return asked


def _cores(plan: GkePlan, machine_type: str) -> int:
    session = plan.session
    where = {"project": session.project, "zone": session.zone, "machineType": machine_type}
    found = find(session.rest, "compute", "machineTypes.get", **where)
    return found["guestCpus"] if found else 0


def _fix(plan: GkePlan, metric: str, room: float) -> str:
    project = plan.session.project
    link = f"https://console.cloud.google.com/iam-admin/quotas?project={project}&metric={metric}"
    less = "fewer nodes, another region" if room >= 1 else "another region"
    other = f", {'spot=False' if plan.machines.spot else 'spot=True'}" if "GPU" in metric else ""
    return f"ask for more of {metric} at {link}; or {less}{other}"
