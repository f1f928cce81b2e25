"""Types and options that planning, prices and listing of all clouds share."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput
from trainyard_kit.clouds.tags import Tags

HOURS, MAX_HOURS, DISK_GB = 8, 336, 100
POOL = "trainyard/pool"  # the label of nodes
COMMON_OPTIONS = {
    "hours": f"until the cloud deletes it; by default {HOURS}",
    "disk_gb": f"of each training node; by default {DISK_GB}",
    "confirm": "True accepts the cost without a prompt",
    "admins": "further administrators: a list of what cluster.add_admin takes",
    "budget": "limit in dollars for all clusters of the account; by default TRAINYARD_BUDGET",
}


@cache
def read_table(name: str) -> dict[str, Any]:
    """Read a table of facts about ``amazon`` and ``google``: ``errors``, ``machines`` or ``prices``."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Machines:
    """The training nodes.

    Attributes:
        type: ``g4dn.xlarge``, ``n1-standard-4``.
        count: How many, or the autoscaler's maximum.
        gpus: Of each.
        accelerator: The GPU's name at the cloud: ``nvidia-tesla-t4``; empty without GPUs, and at AWS.
        spot: Whether they are spot machines.
        alternative_types: Further types that a spot node group may use.
        disk_gb: Of each.
        block: Id of their AWS Capacity Block, which is prepaid; empty without one.
        flex_start: Whether Google Cloud starts them with flex-start: queued, cheaper, for at most seven days.
    """

    type: str
    count: int
    gpus: int = 0
    accelerator: str = ""
    spot: bool = False
    alternative_types: tuple[str, ...] = ()
    disk_gb: int = DISK_GB
    block: str = ""
    flex_start: bool = False


@dataclass(frozen=True)
class CloudSpec:
    """What planned and existing clusters have in common; each cloud's plan adds to it.

    Attributes:
        tags: Its owner and expiry.
        machines: Its training nodes; None if an existing cluster has none.
        private: Whether nodes have no public address, and need a NAT gateway.
        least: The autoscaler's minimum of training nodes.
    """

    tags: Tags
    machines: Machines | None = None
    private: bool = False
    least: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class CloudPlan(CloudSpec):
    """A cluster to create.

    Attributes:
        machines: Its training nodes.
        admins: Further administrators, as `CloudProvider.add_admin` takes them.
        cidrs: Addresses that may reach the API server; empty for all.
        confirm: Whether the user has accepted the cost beforehand, also in another zone.
    """

    machines: Machines
    admins: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    confirm: bool = False


@dataclass(frozen=True)
class ClusterInfo(CloudSpec):
    """An existing cluster, as the cloud describes it.

    Attributes:
        state: The cloud's state in lower case: ``active``, ``running``, ``create_in_progress``.
        version: Of Kubernetes.
        endpoint: Of the API server, with scheme; empty before it exists.
        authority: The CA certificate, in base64.
        where: The region or zone.
    """

    state: str = ""
    version: str = ""
    endpoint: str = ""
    authority: str = ""
    where: str = ""


@dataclass(frozen=True)
class CloudResource:
    """A cloud resource of a cluster.

    Attributes:
        cluster: The cluster it belongs to.
        name: What it is for: ``nat gateway``.
        kind: The cloud's type: ``AWS::EC2::NatGateway``.
        id: The cloud's id, as the console shows it.
        where: Its region, zone or project.
        state: The cloud's state.
        costs: ``0.045 $ an hour``; empty if nothing.
        tags: The kit's tags on it, if it can have any.
    """

    cluster: str
    name: str
    kind: str
    id: str
    where: str
    state: str = "exists"
    costs: str = ""
    tags: Tags | None = None


def reject_type_fields(shape: Shape, fields: Sequence[str], *, about: str, cloud: str, fix: str) -> None:
    """Raise BadInput for quantities that the machine type determines."""
    for name in fields:
        if getattr(shape, name) is not None:
            message = f"at {cloud} the machine type determines {name}"
            raise BadInput(message, about=f'create_cluster("{about}", {name}=…)', fix=fix)


def machines_differ(existing: str, title: str) -> BadInput:
    return BadInput(
        f"it exists already, with other machines: {existing}",
        about=title,
        fix="request these, choose another name, or delete it first; `cluster.scale(n)` changes the number",
    )


def strings_of(options: Mapping[str, Any], option: str) -> tuple[str, ...]:
    """Read an option that is a list of strings; raise BadInput for anything else."""
    value = options.get(option) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise BadInput(f"{option} are a list", about=f"{option}={value!r}", fix=f"`{option}=[{value!r}]`")
    return tuple(dict.fromkeys(value))


def cidrs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the addresses that may reach the API server; raise BadInput for invalid ones."""
    cidrs = strings_of(options, "allowed_cidrs")
    try:
        for cidr in cidrs:
            ip_network(cidr)
    except ValueError as error:
        raise BadInput(str(error), about="allowed_cidrs", fix='["203.0.113.0/24"]') from error
    return cidrs


def expiry_after(hours: object) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=check_hours(hours))


def check_hours(hours: object) -> float:
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0.5 <= hours <= MAX_HOURS:
        raise BadInput(
            f"hours are a number from 0.5 to {MAX_HOURS}", about=f"hours={hours!r}", fix=f"`hours={HOURS}`"
        )
    return float(hours)
