"""What the pods of a run have written, with the output of those that are there no longer.

An API server has the logs of pods that exist. A Job that fails deletes those that still run, an elastic run
those that it does not need, the Training Operator all of them, those that failed as well. So what they wrote
is read while it can be, and kept by whoever looks at the run. A log may be gone before it is read; what a
pod's status says of its end, exit code and last words, comes with the watch, at the latest with its deletion.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from kitlib.display.tracebacks import Line
from kitlib.k8s import logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.watch import WatchSpec, watch_objects


class LogCache:
    """The logs of a run's pods, as far as they may soon be gone."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.kept: dict[str, tuple[Object, list[Line]]] = {}  # by the pods' uids
        self._ended: set[str] = set()
        self._seen: dict[str, Object] = {}  # by uid: as they ended, or else as they were last

    def see(self, pod: Object) -> None:
        """Take note of a pod as it is now."""
        uid = pod["metadata"]["uid"]
        if uid not in self._seen or not pods.finished(self._seen[uid]):
            self._seen[uid] = pod

    def newest(self, there: Collection[Object]) -> list[Object]:
        """Return the newest pod of each rank, be it gone: as it ended, or else as it was last.

        Args:
            there: The pods that exist.
        """
        for pod in there:
            self.see(pod)
        by_age = sorted(self._seen.values(), key=lambda pod: pod["metadata"]["creationTimestamp"])
        return list({pods.replica_id(each): each for each in by_age}.values())

    def watch(self, seen: Collection[Object]) -> None:
        """Read what may soon be gone: all logs at the first failure, then those of pods that end badly.

        Those of the failed first: some operators delete them as well, as soon as they have seen it.
        """
        ending = [each for each in seen if pods.phase(each) == "Failed" or _leaves(each)]
        new = [each for each in ending if each["metadata"]["uid"] not in self._ended]
        if not new:
            return
        others = [] if self._ended else [each for each in seen if each not in new]
        for pod in (*new, *others):
            self._keep(pod, logs.read_if_reachable(self.kube, pod))
        self._ended |= {each["metadata"]["uid"] for each in new}

    def refresh(self, there: Iterable[Object]) -> None:
        """Read what pods have written until now; what one has told before its node fell silent stays."""
        for pod in there:
            self._keep(pod, logs.read_if_reachable(self.kube, pod))

    def drain(
        self, leaving: Collection[Object], delete: Callable[[], None], *, seconds: float, report: Callable
    ) -> None:
        """Have pods deleted, and keep what they have written to their very end.

        Args:
            leaving: The pods.
            delete: Begins it.
            seconds: How long to wait for them; not for those whose nodes do not answer.
            report: Called with a line on whom it waits for.
        """
        for pod in leaving:
            self._keep(pod, logs.read_if_reachable(self.kube, pod))
        waiting = {each["metadata"]["uid"]: each for each in leaving if not pods.node_unreachable(each)}
        if not waiting:
            delete()
            return
        followers, written = logs.Followers(), {}
        try:
            self._follow(waiting, followers, written)
            delete()
            end = time.monotonic() + seconds
            for seen in watch_objects(self.kube, WatchSpec("Pod", labels=names.RUN)):
                there = {each["metadata"]["uid"]: each for each in seen["Pod"].values()}
                waiting |= {uid: there[uid] for uid in waiting if uid in there}
                self._follow({uid: there[uid] for uid in waiting if uid in there}, followers, written)
                alive = followers.alive()  # asked first: what came before they ended is taken below
                for uid, line in followers.take(0.1 if alive else 0.0):
                    written[uid].append(line)
                left = [waiting[uid]["metadata"]["name"] for uid in waiting if uid in there]
                if not alive and not left or time.monotonic() > end:
                    break
                report(f"{', '.join(left) or 'their last lines'}: leaving")
        finally:
            followers.close()
            for uid, lines in written.items():
                self._keep(waiting[uid], lines)

    def _follow(
        self, waiting: Mapping[str, Object], followers: logs.Followers, written: dict[str, list[Line]]
    ) -> None:
        """Follow those that have begun to write, and were not followed."""
        for uid, pod in waiting.items():
            if uid not in written and pods.started(pod):
                written[uid] = []
                followers.add(uid, logs.Follower(self.kube, pod, partial(logs.written, self.kube, pod)))

    def written(
        self,
        there: Collection[Object],
        chosen: Mapping[int | str, Object],
        *,
        read: Callable = logs.read_if_reachable,
    ) -> dict[int | str, list[Line]]:
        """Return what was written, by the number of the pod: of some as it is now, of those gone as kept.

        Args:
            there: The pods that exist.
            chosen: Those of them that are asked for, by their number.
            read: How a log is read.
        """
        existing = {each["metadata"]["uid"] for each in there}
        found: dict[int | str, list[Line]] = {}
        for uid, (pod, lines) in self.kept.items():
            if uid not in existing:
                found.setdefault(pods.replica_id(pod), []).extend(lines)
        for number, pod in chosen.items():
            before = self.kept.get(pod["metadata"]["uid"], (pod, []))[1]
            found.setdefault(number, []).extend(max(read(self.kube, pod), before, key=len))
        return found

    def _keep(self, pod: Object, lines: list[Line]) -> None:
        uid = pod["metadata"]["uid"]
        before = self.kept.get(uid, (pod, []))[1]
        self.kept[uid] = (pod, max(lines, before, key=len))


def _leaves(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) and not pods.node_unreachable(pod)
