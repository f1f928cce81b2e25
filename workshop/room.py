"""Whether a cluster has room for everybody: what all quotas come to, beside what the nodes have. Pure.

Quotas that fit keep attendees out of each other's way: no pod of theirs ever waits for another's to end.
Where they do not fit, the scheduler takes pods in the order in which they came; and since the ranks of one
run come one by one, two runs may each hold half of what they need and wait for one another. Kubernetes does
not know that ranks belong together.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kitlib.clusters.nodes import GPU, is_ready
from kitlib.k8s import pods
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import format_bytes, parse_quantity
from workshop.attendees import Quota

KINDS = ("cpu", "memory", GPU)
POOL, TRAINING = "trainyard/pool", ("train", "training")  # of the kit's clusters at clouds


@dataclass(frozen=True)
class Room:
    """What attendees need together, and what there is.

    Attributes:
        needed: By kind: cores, bytes, GPUs.
        free: The same, of what the nodes have less what others ask for.
        nodes: How many are Ready.
        training: How many of them are there for training: by their label, or else those with most cores.
        missing: How many more nodes like these it takes; None if there is none to go by.
        pattern: One of these nodes, or None.
    """

    needed: Mapping[str, float]
    free: Mapping[str, float]
    nodes: int
    training: int
    missing: int | None
    pattern: Object | None

    @property
    def enough(self) -> bool:
        """Whether all quotas fit at once."""
        return all(self.free[kind] >= self.needed[kind] for kind in KINDS)

    def __str__(self) -> str:
        parts = [
            f"{_said(kind, self.free[kind])} free for {_said(kind, self.needed[kind])} of quotas"
            for kind in KINDS
            if self.needed[kind]
        ]
        return f"{self.nodes} nodes: " + ", ".join(parts)


def count(attendees: int, quota: Quota, nodes: Sequence[Object], others: Iterable[Object]) -> Room:
    """Return what so many attendees need, beside what there is.

    Args:
        attendees: How many.
        quota: Of each.
        nodes: Of the cluster.
        others: Pods that are not the attendees'.
    """
    needed = {"cpu": parse_quantity(quota.cpu), "memory": parse_quantity(quota.memory), GPU: quota.gpus}
    needed = {kind: attendees * each for kind, each in needed.items()}
    ready = [each for each in nodes if is_ready(each) and not each["spec"].get("unschedulable")]
    has = [{kind: _allocatable(each, kind) for kind in KINDS} for each in ready]
    running = [each for each in others if not pods.finished(each)]
    taken = {kind: sum(_asked(each, kind) for each in running) for kind in KINDS}
    free = {kind: max(0.0, sum(each[kind] for each in has) - taken[kind]) for kind in KINDS}
    training = _training(ready)
    pattern = next(iter(training), None)
    return Room(needed, free, len(ready), len(training), _missing(needed, free, pattern), pattern)


def _training(ready: Sequence[Object]) -> list[Object]:
    """Return the nodes that are there for training, and of which there could be more."""
    pools = [(each["metadata"].get("labels") or {}).get(POOL) for each in ready]
    if any(pools):
        return [each for each, pool in zip(ready, pools, strict=True) if pool in TRAINING]
    most = max((_allocatable(each, "cpu") for each in ready), default=0)
    return [each for each in ready if _allocatable(each, "cpu") == most]


def _missing(needed: Mapping, free: Mapping, pattern: Object | None) -> int | None:
    """Return how many nodes more it takes; None where no number of such nodes would do."""
    short = {kind: needed[kind] - free[kind] for kind in KINDS if needed[kind] > free[kind]}
    if not short:
        return 0
    each = {kind: _allocatable(pattern, kind) if pattern else 0 for kind in short}
    return max(math.ceil(short[kind] / each[kind]) for kind in short) if all(each.values()) else None


def _allocatable(node: Object, kind: str) -> float:
    return parse_quantity(((node.get("status") or {}).get("allocatable") or {}).get(kind, "0"))


def _asked(pod: Object, kind: str) -> float:
    every = ((each.get("resources") or {}).get("requests") or {} for each in pod["spec"]["containers"])
    return sum(parse_quantity(each.get(kind, "0")) for each in every)


def _said(kind: str, amount: float) -> str:
    if kind == "memory":
        return format_bytes(amount)
    return f"{amount:g} {'GPUs' if kind == GPU else 'cores'}"
