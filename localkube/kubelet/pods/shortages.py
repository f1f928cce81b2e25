"""Report shortages of the machine to an instructor: the resource, its largest user, and the remedy.

It is an annotation of the nodes, so that any client of the API reads it. What the machine as a whole is short
of, other programs included, is in ``overload.py``.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from localkube.errors import ApiError
from localkube.kubelet.pods.eviction import PodUsage
from localkube.kubelet.resources.pressure import MAX_DISK, Observation
from localkube.kubelet.volumes.volume_shares import MEMORY, VolumeShares, mebibytes

log = logging.getLogger(__name__)

ANNOTATION = "trainyard/shortages"
CHECK_SECONDS = 10.0
# The resource of each signal, its name for a person, and the part of it that is short.
SIGNALS = {
    "memory.available": ("memory", "memory", 0.15),
    "nodefs.available": ("ephemeral-storage", "disk", 0.15),
    "nodefs.inodesFree": ("inodes", "files", 0.15),
    "pid.available": ("pids", "processes", 0.5),
}
Item = dict[str, str]


def is_short(signal: str, observation: Observation) -> bool:
    """Check whether there is little left, before pods are evicted for it."""
    least = observation.capacity * SIGNALS[signal][2]
    return observation.available < (min(least, 2 * MAX_DISK) if signal == "nodefs.available" else least)


def of_machine(signal: str, observation: Observation, usages: Iterable[PodUsage]) -> Item:
    """Name the pod or claim that uses most of a scarce resource."""
    _, name, _ = SIGNALS[signal]
    text = (lambda amount: str(amount)) if name in ("processes", "files") else mebibytes
    what = f"{text(observation.available)} of {text(observation.capacity)} are left"
    users = [(usage.used, "pod", usage.pod["metadata"]["name"], usage) for usage in usages]
    users += [(used, "pvc", claim, usage) for *_, usage in users for claim, (used, _) in usage.claims.items()]
    largest = max(users, key=lambda user: user[0], default=None)
    if largest is None or largest[0] * 100 < observation.capacity:
        return {
            "resource": name,
            "what": f"{what}; no pod uses much of it",
            "fix": "look at the machine's other programs",
        }
    used, kind, user, usage = largest
    namespace = usage.pod["metadata"]["namespace"]
    return {
        "resource": name,
        "what": f"{what}; {kind} {user} of namespace {namespace} uses most, {text(used)}",
        "fix": f"kubectl delete {kind} {user} -n {namespace}",
    }


def of_secrets(shares: VolumeShares, pods: Iterable[Mapping[str, Any]]) -> list[Item]:
    """Name the namespaces that use most of their share of the memory of Secrets, and their largest pods."""
    items, share = [], shares.of_namespace(MEMORY)
    by_namespace: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        by_namespace.setdefault(pod["metadata"]["namespace"], []).append(pod)
    for namespace, used in shares.used(MEMORY).items():
        if used * 4 < share * 3 or namespace not in by_namespace:
            continue
        largest = max(by_namespace[namespace], key=lambda pod: shares.of_pod(pod["metadata"]["uid"]))
        what = f"namespace {namespace} uses {mebibytes(used)} of the {mebibytes(share)} that it may have"
        fix = f"kubectl delete pod {largest['metadata']['name']} -n {namespace}"
        items.append({"resource": "memory of Secrets", "what": what, "fix": fix})
    return items


class ShortageReporter:
    """Checks every ten seconds, and annotates the nodes when the shortages have changed.

    Args:
        observe: Measures the machine.
        usages: Measures what pods use of a resource.
        pods: Lists the pods.
        annotate: Sets annotations of all nodes.
    """

    def __init__(
        self,
        *,
        observe: Callable[[], Mapping[str, Observation]],
        usages: Callable[[str], Awaitable[list[PodUsage]]],
        pods: Callable[[], Iterable[Mapping[str, Any]]],
        shares: VolumeShares,
        annotate: Callable[[Mapping[str, str | None]], Awaitable[None]],
    ) -> None:
        self._observe, self._usages, self._pods = observe, usages, pods
        self._shares, self._annotate = shares, annotate
        self._written: list[Item] | None = []  # None where some nodes may have others

    async def run(self) -> None:
        while True:
            try:
                await self._report(await self.measure())
            except (OSError, ApiError) as error:
                log.warning("shortages cannot be reported: %s", error)
            await asyncio.sleep(CHECK_SECONDS)

    async def measure(self) -> list[Item]:
        items = of_secrets(self._shares, self._pods())
        for signal, observation in self._observe().items():
            if signal in SIGNALS and is_short(signal, observation):
                items.append(of_machine(signal, observation, await self._usages(SIGNALS[signal][0])))
        return items

    async def _report(self, items: list[Item]) -> None:
        # Figures change all the time; who uses most of what does not.
        if self._written is None or [item["fix"] for item in items] != [
            item["fix"] for item in self._written
        ]:
            self._written = None
            await self._annotate({ANNOTATION: json.dumps(items) if items else None})
            self._written = items
