"""The plan of a cluster at Google Cloud, and which machines it can have."""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from kitlib.errors import BadInput
from trainyard_kit.clouds.clock import Clock
from trainyard_kit.clouds.cloud_errors import HOPELESS
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.spec import CloudSpec, ClusterInfo, Machines

SYSTEM, TRAINING = "default-pool", "training"  # names of the pools
FLEX_START, FLEX_DAYS = (
    "cloud.google.com/gke-flex-start",
    7,
)  # the label of such nodes, and their longest life
LOOK = 30.0  # seconds between two looks at why its machines do not start
GPU_MACHINE, CPU_MACHINE, SYSTEM_MACHINE = "n1-standard-4", "e2-standard-4", "e2-standard-4"
ATTACHED = ("nvidia-tesla-t4",)  # GPUs that are attached to N1 machines; all others come with a machine type
# By kind of GPU, machine types by the number of GPUs that they come with.
# https://cloud.google.com/compute/docs/gpus
COMES_WITH = {
    "nvidia-l4": {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
    "nvidia-rtx-pro-6000": {
        1: "g4-standard-48",
        2: "g4-standard-96",
        4: "g4-standard-192",
        8: "g4-standard-384",
    },
    "nvidia-tesla-a100": {
        **{count: f"a2-highgpu-{count}g" for count in (1, 2, 4, 8)},
        16: "a2-megagpu-16g",
    },
    "nvidia-a100-80gb": {count: f"a2-ultragpu-{count}g" for count in (1, 2, 4, 8)},
    "nvidia-h100-80gb": {count: f"a3-highgpu-{count}g" for count in (1, 2, 4, 8)},
    "nvidia-h100-mega-80gb": {8: "a3-megagpu-8g"},
    "nvidia-h200-141gb": {8: "a3-ultragpu-8g"},
    "nvidia-b200": {8: "a4-highgpu-8g"},
    "nvidia-gb200": {4: "a4x-highgpu-4g"},
}
TOO_OLD = ("k80", "p4", "p100", "v100")  # https://developer.nvidia.com/cuda-gpus: below 7.5
ARM = ("a4x", "c4a", "n4a", "t2a")
# https://cloud.google.com/compute/docs/disks/hyperdisks#machine-type-support
HYPERDISK_ONLY = ("a3-ultragpu", "a4", "a4x", "c4", "c4a", "c4d", "g4", "h4d", "m4", "n4", "n4a", "n4d", "x4")
SPOT_ONLY = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")


@dataclass(frozen=True)
class GkePlan(CloudSpec):
    """A cluster to create.

    Attributes:
        machines: Its training nodes.
        network: An existing one; empty for one of its own.
        subnetwork: Of an existing network, in the region.
        labels: The user's own, on all that can have labels.
        allowed_cidrs: From which its API server is reached; empty for all.
        admins: Who administers it beside its creator: ``user:ada@example.org``.
        confirm: Whether the price is agreed to beforehand, also that of another zone.
    """

    machines: Machines
    network: str = ""
    subnetwork: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    allowed_cidrs: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    confirm: bool = False

    def __post_init__(self) -> None:
        if self.subnetwork and not self.network:
            raise BadInput("its network is not named", about="subnetwork=…", fix='network="its network"')
        try:
            for cidr in self.allowed_cidrs:
                ip_network(cidr)
        except ValueError as error:
            raise BadInput(str(error), about="allowed_cidrs", fix='["203.0.113.0/24"]') from error
        for key, value in self.labels.items():
            if key.startswith("trainyard") or not re.fullmatch(
                r"[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}", f"{key}={value}"
            ):
                what = "labels have a-z, 0-9, - and _, and those that begin with trainyard are the kit's"
                raise BadInput(what, about=f"labels={{{key!r}: {value!r}}}", fix='labels={"team": "vision"}')


@dataclass(frozen=True)
class GkeInfo(ClusterInfo):
    """An existing cluster, with the network and subnetwork in which it is."""

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
    """Choose the machines, with defaults for what is not asked for."""
    kind, machine = str(accelerator or ""), str(machine_type or "")
    if gpus and not (kind or machine):
        raise BadInput("no kind of GPU is named", about=f"gpus={gpus}", fix='accelerator="nvidia-tesla-t4"')
    if kind.rpartition("-")[2] in TOO_OLD:
        what = f"{kind} is older than Turing: PyTorch's builds for CUDA 13 begin at compute capability 7.5"
        fix = 'accelerator="nvidia-tesla-t4" or "nvidia-l4"'
        raise BadInput(what, about=f"accelerator={kind!r}", fix=fix)
    kind, count, machine = _with_gpus(kind, gpus, machine)
    if machine.partition("-")[0] in ARM:
        what = "it has ARM cores, and the kit's images are for amd64"
        raise BadInput(what, about=f"machine_type={machine!r}", fix='machine_type="e2-standard-4"')
    if machine in SPOT_ONLY and not spot:
        what = "Google Cloud gives this machine type as spot only"
        fix = 'spot=True, or all eight GPUs: machine_type="a3-highgpu-8g", gpus=8'
        raise BadInput(what, about=f"machine_type={machine!r}", fix=fix)
    if flex_start and (spot or not count):
        what = "flex-start is for GPUs, and another offer than spot"
        fix = 'accelerator="nvidia-l4", flex_start=True, without spot'
        raise BadInput(what, about=f"flex_start=True, spot={bool(spot)}, {machine}", fix=fix)
    more: dict[str, Any] = {"disk_gb": disk_gb, "flex_start": bool(flex_start)}
    return Machines(machine, nodes, count, kind if count else "", bool(spot), **more)


def _with_gpus(kind: str, gpus: int | None, machine: str) -> tuple[str, int, str]:
    """Complete kind and number of GPUs and machine type from each other, as machines come with their GPUs."""
    sold = {name: (gpu, count) for gpu, types in COMES_WITH.items() for count, name in types.items()}
    if machine in sold and kind in ("", sold[machine][0]) and gpus in (None, sold[machine][1]):
        return *sold[machine], machine
    if gpus and not kind:
        has = f"it has {sold[machine][1]} GPUs of kind {sold[machine][0]}" if machine in sold else ""
        fix = 'accelerator="nvidia-tesla-t4"' if not has else f"leave gpus= out: {has}"
        raise BadInput("no kind of GPU is named", about=f"gpus={gpus}, machine_type={machine!r}", fix=fix)
    if not kind or kind in ATTACHED or machine:
        count = 0 if not kind else 1 if gpus is None else gpus
        return kind, count, machine or (GPU_MACHINE if count else CPU_MACHINE)
    types = COMES_WITH.get(kind)
    if types is None:
        fix = f"machine_type= of your choice, or accelerator= one of {', '.join((*ATTACHED, *COMES_WITH))}"
        what = "the kit does not know which machine type comes with this GPU"
        raise BadInput(what, about=f"accelerator={kind!r}", fix=fix)
    count = min(types) if gpus is None else gpus
    if count and count not in types:
        what = f"machines come with {' or '.join(map(str, types))} of them"
        raise BadInput(what, about=f"accelerator={kind!r}, gpus={count}", fix=f"gpus={min(types)}")
    return kind, count, types[count] if count else CPU_MACHINE


def disk_type(machine: str) -> str:
    """The type of boot disk that a machine type takes.

    Example:
        >>> disk_type("n4-standard-8"), disk_type("n1-standard-4")
        ('hyperdisk-balanced', 'pd-balanced')
    """
    hyper = machine.startswith(tuple(f"{family}-" for family in HYPERDISK_ONLY))
    return "hyperdisk-balanced" if hyper else "pd-balanced"


def accelerators(session: GcpSession) -> dict[str, dict[str, int]]:
    """The zones of each kind of GPU, with how many a machine there has at most."""
    by_type: dict[str, dict[str, int]] = {}
    method, project = "acceleratorTypes.aggregatedList", session.project
    for scope in session.every("compute", method, "items", project=project):
        for type_ in scope.get("acceleratorTypes", ()):
            zone = type_["zone"].rpartition("/")[2]
            by_type.setdefault(type_["name"], {})[zone] = type_.get("maximumCardsPerInstance", 1)
    return by_type


def machine_type(session: GcpSession, name: str, zone: str | None = None) -> dict[str, Any] | None:
    """Describe a machine type; None if the zone does not have it."""
    where = {"project": session.project, "zone": zone or session.zone, "machineType": name}
    return session.find("compute", "machineTypes.get", **where)


def next_zones(session: GcpSession, machines: Machines) -> list[str]:
    """The other zones of the region that have the machines."""
    listed = session.every("compute", "zones.list", "items", project=session.project)
    zones = {zone["name"] for zone in listed if zone["name"].rpartition("-")[0] == session.region}
    if machines.accelerator:
        zones &= set(accelerators(session).get(machines.accelerator, ()))
    return [zone for zone in sorted(zones - {session.zone}) if machine_type(session, machines.type, zone)]


def launch_failures(session: GcpSession, cluster: str, pool: str = TRAINING) -> dict[str, str]:
    """Find why Compute Engine starts no machines of a pool: its words, by time and group, newest first."""
    path = f"{session.place}/clusters/{cluster}/nodePools/{pool}"
    messages: dict[str, str] = {}
    with contextlib.suppress(GcpError):  # it tells more, and nothing depends on it
        group = session.find("container", "get_node_pool", name=path)
        for url in group.instance_group_urls if group else ():
            zone, name = url.split("/")[-3::2]  # …/zones/ZONE/instanceGroupManagers/NAME
            where = {"project": session.project, "zone": zone, "instanceGroupManager": name}
            for item in session.every("compute", "instanceGroupManagers.listErrors", "items", **where):
                error = item.get("error") or {}
                words = f"{error.get('code', '')}: {error.get('message', '')}"
                messages[f"{item.get('timestamp', '')} {name} {words}"] = words
    return dict(sorted(messages.items(), reverse=True))


def hopeless(session: GcpSession, words: str) -> GcpError | None:
    """Build the error for machines that no waiting brings: a quota, a bill or a policy is in the way."""
    error = to_error(ErrorReply(400, "", words), "machines", session.project)
    return error if error.why in HOPELESS else None


def launch_watch(session: GcpSession, cluster: str, clock: Clock, pool: str = TRAINING) -> Callable[[], str]:
    """Return what tells why machines do not start from now on, and raises if no waiting helps."""
    known, due, said = launch_failures(session, cluster, pool), clock.now() + LOOK, ""

    def look() -> str:
        nonlocal due, said
        if clock.now() >= due:
            failures = launch_failures(session, cluster, pool)
            new = [words for launch, words in failures.items() if launch not in known]
            if new and (error := hopeless(session, new[0])):
                raise error
            due, said = clock.now() + LOOK, next(iter(new), "")
        return said

    return look
