"""A namespace's share of the machine's processes, where no control group holds it.

The kernel then counts those of each pod alone, in its user namespace, and twenty pods could take all that
there are. So they are counted here, once half of the machine's are used, and pods of a namespace that has
more than its share are evicted, the largest first. Between two looks one can have more, of the quarter
of the machine's that no pod is meant to use.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from localkube.kubelet.pods.pod import events
from localkube.kubelet.pods.pod.worker import PodWorker
from localkube.kubelet.resources.cgroup_hierarchy import Bounds
from localkube.kubelet.resources.limits import Limits, threads, tree
from localkube.kubelet.resources.pressure import is_critical, running_processes

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25


class ProcessGuard:
    """Counts the processes and threads of namespaces.

    Args:
        machine: How many the machine allows in all.
        running: Counts those of the machine.
    """

    def __init__(
        self,
        pods: Callable[[], Iterable[PodWorker]],
        limits: Limits,
        *,
        machine: int,
        running: Callable[[], int] = running_processes,
    ) -> None:
        self._pods, self._limits, self._machine, self._running = pods, limits, machine, running
        self._share = Bounds.of_machine(processes=machine, memory=0).processes_of_namespace

    async def run(self) -> None:
        """Check four times a second; return at once if the kernel enforces the shares."""
        while self._limits.bounds is None:
            if self._running() > self._machine // 2:
                await self._evict_above_share()
            await asyncio.sleep(CHECK_SECONDS)

    async def _evict_above_share(self) -> None:
        active = {pod.uid: pod for pod in self._pods() if not pod.record.finished and not pod.record.stopping}
        counts = await asyncio.to_thread(lambda: {uid: count_threads(pod) for uid, pod in active.items()})
        namespaces = {uid: pod.pod["metadata"]["namespace"] for uid, pod in active.items()}
        for uid in above_share(counts, namespaces, share=self._share):
            if is_critical(active[uid].pod):
                continue
            log.warning("evicting pod %s, which has %d processes", uid, counts[uid])
            active[uid].apply(
                events.evicted,
                f"The namespace {namespaces[uid]} had more than its share of {self._share} processes. "
                f"The pod was using {counts[uid]} of them. ",
            )


def above_share(counts: Mapping[str, int], namespaces: Mapping[str, str], *, share: int) -> list[str]:
    """List the pods that must end, the largest first, so that each namespace has no more than its share.

    Example:
        >>> above_share({"a": 60, "b": 30, "c": 70}, {"a": "ada", "b": "ada", "c": "bob"}, share=80)
        ['a']
    """
    ended = []
    totals: dict[str, int] = {}
    for uid, count in counts.items():
        totals[namespaces[uid]] = totals.get(namespaces[uid], 0) + count
    for uid in sorted(counts, key=counts.__getitem__, reverse=True):
        if totals[namespaces[uid]] > share:
            totals[namespaces[uid]] -= counts[uid]
            ended.append(uid)
    return ended


def count_threads(worker: PodWorker) -> int:
    firsts = [process.pid for process in list(worker.processes.values()) if process.running]
    pids = [pid for first in firsts for pid in tree(first)]
    return sum(len(threads(pid)) for pid in pids)
