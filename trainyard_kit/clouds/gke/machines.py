"""The plan of a GKE cluster, and the machines that it can have."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kitlib.errors import BadInput
from trainyard_kit.clouds.cloud_errors import PERMANENT
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.spec import CloudPlan, ClusterInfo, Machines, read_table
from trainyard_kit.clouds.steps import Clock

SYSTEM, TRAINING = "default-pool", "training"  # names of the pools
FLEX_START, FLEX_DAYS = "cloud.google.com/gke-flex-start", 7  # the nodes' label, and their maximum lifetime
POLL_SECONDS = 30.0  # between two requests for launch failures
GPU_MACHINE, CPU_MACHINE, SYSTEM_MACHINE = "n1-standard-4", "e2-standard-4", "e2-standard-4"
FACTS = read_table("machines")["google"]
COMES_WITH = {
    kind: {int(count): name for count, name in types.items()} for kind, types in FACTS["comes_with"].items()
}


@dataclass(frozen=True)
class GkePlan(CloudPlan):
    """A cluster to create; ``request`` is merged into the request for it, such as an existing network."""

    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GkeInfo(ClusterInfo):
    """An existing cluster, with its network and subnetwork."""

    network: str = ""
    subnetwork: str = ""


def choose(
    *,
    nodes: int,
    machine_type: object,
    accelerator: object,
    gpus: int | None,
    spot: object,
    disk_gb: int,
    flex_start: object = None,
) -> Machines:
    """Choose the machines, with defaults for options that are not set."""
    kind, machine = str(accelerator or ""), str(machine_type or "")
    if gpus and not (kind or machine):
        raise BadInput("no GPU type is given", about=f"gpus={gpus}", fix='`accelerator="nvidia-tesla-t4"`')
    if kind.rpartition("-")[2] in FACTS["too_old"]:
        what = f"{kind} is older than Turing, the oldest that PyTorch's CUDA 13 builds support"
        fix = '`accelerator="nvidia-tesla-t4"` or "nvidia-l4"'
        raise BadInput(what, about=f"accelerator={kind!r}", fix=fix)
    kind, count, machine = _with_gpus(kind, gpus, machine)
    if machine.partition("-")[0] in FACTS["arm"]:
        what = "its CPUs are ARM, and the kit's images are for amd64"
        raise BadInput(what, about=f"machine_type={machine!r}", fix='`machine_type="e2-standard-4"`')
    if machine in FACTS["spot_only"] and not spot:
        what = "Google Cloud offers this machine type as spot only"
        fix = '`spot=True`, or all eight GPUs: `machine_type="a3-highgpu-8g"`, `gpus=8`'
        raise BadInput(what, about=f"machine_type={machine!r}", fix=fix)
    if flex_start and (spot or not count):
        what = "flex-start is for GPUs, and cannot be combined with spot"
        fix = '`accelerator="nvidia-l4"`, `flex_start=True`, without spot'
        raise BadInput(what, about=f"flex_start=True, spot={bool(spot)}, {machine}", fix=fix)
    accelerator = kind if count else ""
    return Machines(
        machine, nodes, count, accelerator, bool(spot), disk_gb=disk_gb, flex_start=bool(flex_start)
    )


def _with_gpus(kind: str, gpus: int | None, machine: str) -> tuple[str, int, str]:
    """Derive GPU type, GPU count and machine type from each other; most machine types include their GPUs."""
    included = {name: (gpu, count) for gpu, types in COMES_WITH.items() for count, name in types.items()}
    if machine in included and kind in ("", included[machine][0]) and gpus in (None, included[machine][1]):
        return *included[machine], machine
    if gpus and not kind:
        fix = '`accelerator="nvidia-tesla-t4"`'
        if machine in included:
            fix = f"leave `gpus=` out: it has {included[machine][1]} {included[machine][0]}"
        raise BadInput("no GPU type is given", about=f"gpus={gpus}, machine_type={machine!r}", fix=fix)
    if not kind or kind in FACTS["attached"] or machine:
        count = 0 if not kind else 1 if gpus is None else gpus
        return kind, count, machine or (GPU_MACHINE if count else CPU_MACHINE)
    types = COMES_WITH.get(kind)
    if types is None:
        kinds = ", ".join((*FACTS["attached"], *COMES_WITH))
        fix = f"set `machine_type=`, or `accelerator=` to one of {kinds}"
        what = "the kit does not know a machine type with this GPU"
        raise BadInput(what, about=f"accelerator={kind!r}", fix=fix)
    count = min(types) if gpus is None else gpus
    if count and count not in types:
        what = f"machine types have {' or '.join(map(str, types))} of them"
        raise BadInput(what, about=f"accelerator={kind!r}, gpus={count}", fix=f"`gpus={min(types)}`")
    return kind, count, types[count] if count else CPU_MACHINE


def disk_type(machine: str) -> str:
    """The type of boot disk that a machine type supports.

    Example:
        >>> disk_type("n4-standard-8"), disk_type("n1-standard-4")
        ('hyperdisk-balanced', 'pd-balanced')
    """
    hyper = machine.startswith(tuple(f"{family}-" for family in FACTS["hyperdisk_only"]))
    return "hyperdisk-balanced" if hyper else "pd-balanced"


def accelerators(session: GcpSession) -> dict[str, dict[str, int]]:
    """The maximum GPUs per machine, by GPU type and zone."""
    by_type: dict[str, dict[str, int]] = {}
    path = f"projects/{session.project}/aggregated/acceleratorTypes"
    for scope in session.paginate("compute", path, "items"):
        for type_ in scope.get("acceleratorTypes", ()):
            zone = type_["zone"].rpartition("/")[2]
            by_type.setdefault(type_["name"], {})[zone] = type_.get("maximumCardsPerInstance", 1)
    return by_type


def machine_type(session: GcpSession, name: str, zone: str | None = None) -> dict[str, Any] | None:
    """Describe a machine type; None if the zone does not have it."""
    where = f"projects/{session.project}/zones/{zone or session.zone}"
    description: dict[str, Any] | None = session.find("compute", f"{where}/machineTypes/{name}")
    return description


def next_zones(session: GcpSession, machines: Machines) -> list[str]:
    """The other zones of the region that offer the machines."""
    listed = session.paginate("compute", f"projects/{session.project}/zones", "items")
    zones = {zone["name"] for zone in listed if zone["name"].rpartition("-")[0] == session.region}
    if machines.accelerator:
        zones &= set(accelerators(session).get(machines.accelerator, ()))
    return [zone for zone in sorted(zones - {session.zone}) if machine_type(session, machines.type, zone)]


def launch_failures(session: GcpSession, cluster: str, pool: str = TRAINING) -> dict[str, str]:
    """Find why a pool's machines do not start: Compute Engine's messages by time and group, newest first."""
    path = f"{session.parent}/clusters/{cluster}/nodePools/{pool}"
    messages: dict[str, str] = {}
    with contextlib.suppress(GcpError):  # diagnostic only
        group = session.find("container", path) or {}
        for url in group.get("instanceGroupUrls", ()):
            zone, name = url.split("/")[-3::2]  # …/zones/ZONE/instanceGroupManagers/NAME
            manager = f"projects/{session.project}/zones/{zone}/instanceGroupManagers/{name}"
            for item in session.paginate("compute", f"{manager}/listErrors", "items"):
                error = item.get("error") or {}
                message = f"{error.get('code', '')}: {error.get('message', '')}"
                messages[f"{item.get('timestamp', '')} {name} {message}"] = message
    return dict(sorted(messages.items(), reverse=True))


def permanent_error(session: GcpSession, message: str) -> GcpError | None:
    """Build the error for a launch failure if waiting does not help: quota, billing or policy."""
    error = to_error(ErrorReply(400, "", message), "machines", session.project)
    return error if error.reason in PERMANENT else None


def launch_watch(session: GcpSession, cluster: str, clock: Clock, pool: str = TRAINING) -> Callable[[], str]:
    """Return a function that returns the message of the newest launch failure from now on, or raises it.

    It raises a failure if waiting does not help, and queries Compute Engine at most every `POLL_SECONDS`.
    """
    known, due, message = launch_failures(session, cluster, pool), clock.now() + POLL_SECONDS, ""

    def poll() -> str:
        nonlocal due, message
        if clock.now() >= due:
            failures = launch_failures(session, cluster, pool)
            messages = [text for launch, text in failures.items() if launch not in known]
            if messages and (error := permanent_error(session, messages[0])):
                raise error
            due, message = clock.now() + POLL_SECONDS, next(iter(messages), "")
        return message

    return poll
