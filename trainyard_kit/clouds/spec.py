"""A cluster at any cloud: what may be asked for, and what planning, prices and listing share."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput
from trainyard_kit.clouds.tags import Tags

HOURS, MAX_HOURS, DISK_GB = 8, 336, 100
POOL = "trainyard/pool"  # the label of nodes
COMMON_OPTIONS = {
    "hours": f"after which the cloud itself deletes it; by default {HOURS}",
    "disk_gb": f"of each training node; by default {DISK_GB}",
    "confirm": "True agrees to the price beforehand",
    "admins": "who administers it beside you: a list of what cluster.add_admin takes",
    "budget": "dollars that all clusters there may cost; by default TRAINYARD_BUDGET",
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
        count: How many, or to how many they may grow.
        gpus: Of each.
        accelerator: The GPU's name at the cloud: ``nvidia-tesla-t4``; empty without GPUs, and at AWS.
        spot: Whether the cloud may take them back, for a lower price.
        others: Further types that a spot node group may take.
        disk_gb: Of each.
        block: Id of the Capacity Block at AWS that they are of, which is paid for; empty without one.
        flex_start: Whether Google Cloud may let pods wait for them, at a lower price, for seven days at most.
    """

    type: str
    count: int
    gpus: int = 0
    accelerator: str = ""
    spot: bool = False
    others: tuple[str, ...] = ()
    disk_gb: int = DISK_GB
    block: str = ""
    flex_start: bool = False


@dataclass(frozen=True)
class CloudSpec:
    """What both a planned cluster and an existing one have; each cloud's plan adds to it.

    Attributes:
        tags: Whose it is, and when it ends.
        machines: Its training nodes; None where an existing cluster has none.
        private: Whether nodes have no public address, and need a NAT gateway.
        least: To how few machines the training nodes shrink while they are idle.
    """

    tags: Tags
    machines: Machines | None = None
    private: bool = False
    least: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class ClusterInfo(CloudSpec):
    """An existing cluster, as the cloud describes it.

    Attributes:
        state: In the cloud's word, in lower case: ``active``, ``running``, ``create_in_progress``.
        version: Of Kubernetes.
        endpoint: Of its API server, with scheme; empty before there is one.
        authority: The certificate of its CA, in base64.
        where: Its region or zone.
    """

    state: str = ""
    version: str = ""
    endpoint: str = ""
    authority: str = ""
    where: str = ""


@dataclass(frozen=True)
class CloudResource:
    """One thing of a cluster that exists at a cloud.

    Attributes:
        cluster: The cluster it belongs to.
        name: What it is for: ``nat gateway``.
        kind: The cloud's word for it: ``AWS::EC2::NatGateway``.
        id: By which the cloud's console finds it.
        where: Its region, zone or project.
        state: In the cloud's word.
        costs: ``0.045 $ an hour``; empty if nothing.
        tags: The kit's tags on it, if it can have any.
    """

    cluster: str
    name: str
    kind: str
    id: str
    where: str
    state: str = "there"
    costs: str = ""
    tags: Tags | None = None


def no_words(shape: Shape, words: Sequence[str], *, about: str, cloud: str, fix: str) -> None:
    """Refuse numbers that come with a machine's type."""
    for word in words:
        if getattr(shape, word) is not None:
            raise BadInput(
                f"{word} of a machine at {cloud} come with its type",
                about=f'create_cluster("{about}", {word}=…)',
                fix=fix,
            )


def other_machines(has: str, title: str) -> BadInput:
    return BadInput(
        f"it exists already, with other machines: {has}",
        about=title,
        fix="request these, choose another name, or delete it first; `cluster.scale(n)` changes how many",
    )


def admins_of(raw: object) -> tuple[str, ...]:
    if isinstance(raw, Sequence) and not isinstance(raw, str):
        return tuple(dict.fromkeys(map(str, raw)))
    if raw is None:
        return ()
    raise BadInput("admins are a list", about=f"admins={raw!r}", fix=f"`admins=[{raw!r}]`")


def until_of(hours: object) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours_of(hours))


def hours_of(hours: object) -> float:
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0.5 <= hours <= MAX_HOURS:
        raise BadInput(
            f"hours are a number from 0.5 to {MAX_HOURS}", about=f"hours={hours!r}", fix=f"`hours={HOURS}`"
        )
    return float(hours)
