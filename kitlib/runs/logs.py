"""A run's logs: kept when pods are deleted, streamed as they come, searched for the first error.

The API server has the logs of existing pods alone. A Job that fails deletes those that still run, an elastic
run those that it does not need, the Training Operator all of them. So logs are read while they can be, and
kept by the `Run` that watches. Reading one pod is in `kitlib.k8s.logs`.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Self

from kitlib.display import tracebacks
from kitlib.display.progress import PartialProgress, progress
from kitlib.display.tables import Text
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput, Interrupted, RunFailed
from kitlib.k8s import job_kinds, logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.metrics.log_format import format_line
from kitlib.runs.status import RunObjects, RunStatus

LAST_LINES = 20
_TORCHRUN = re.compile(r"torch/distributed/elastic/\S+\] failed \(exitcode")


class LogCache:
    """The logs of a run's pods, kept for when the pods are deleted: pod and lines by the pod's uid."""

    def __init__(self, objects: RunObjects) -> None:
        self.objects: RunObjects = objects
        self.kube: Kube = objects.kube
        self.logs: dict[str, tuple[Object, list[Line]]] = {}
        self._ended: set[str] = set()

    def refresh(self, there: Iterable[Object]) -> None:
        """Read the logs of these pods; what was read before a node became unreachable is kept."""
        for pod in there:
            self._keep(pod, logs.read_if_reachable(self.kube, pod))

    def refresh_ending(self, there: Collection[Object]) -> None:
        """Read all logs at the first failure, later those of pods that fail or are deleted.

        Failed ones first: some operators delete them as soon as they have seen it.
        """
        ending = [
            pod
            for pod in there
            if pods.phase(pod) == "Failed" or (pods.deleted(pod) and not pods.node_unreachable(pod))
        ]
        new = [pod for pod in ending if pod["metadata"]["uid"] not in self._ended]
        if new:
            self.refresh([*new, *([] if self._ended else [pod for pod in there if pod not in new])])
            self._ended |= {pod["metadata"]["uid"] for pod in new}

    def drain(
        self,
        leaving: Collection[Object],
        delete: Callable[[], None],
        *,
        seconds: float,
        report: Callable[[str], None],
    ) -> None:
        """Delete pods and keep their logs to the last line; unreachable pods are not waited for."""
        self.refresh(leaving)
        waiting = {pod["metadata"]["uid"]: pod for pod in leaving if not pods.node_unreachable(pod)}
        if not waiting:
            delete()
            return
        followers = logs.PodLogFollowers(self.kube)
        written: dict[str, list[Line]] = defaultdict(list)
        try:
            for pod in filter(pods.started, waiting.values()):
                followers.follow(pod, pod["metadata"]["uid"])
            delete()
            end = time.monotonic() + seconds
            for seen in watch_objects(self.kube, WatchSpec("Pod", labels=names.RUN)):
                by_uid = {pod["metadata"]["uid"]: pod for pod in seen["Pod"].values()}
                there = {uid: by_uid[uid] for uid in waiting if uid in by_uid}
                waiting |= there
                for pod in filter(pods.started, there.values()):
                    followers.follow(pod, pod["metadata"]["uid"])
                alive = followers.alive()  # asked first: what they wrote before they ended is taken below
                for uid, line in followers.take(0.1 if alive else 0.0):
                    written[uid].append(line)
                left = [pod["metadata"]["name"] for pod in there.values()]
                if not alive and not left or time.monotonic() > end:
                    break
                report(f"{', '.join(left) or 'their last lines'}: leaving")
        finally:
            followers.close()
            for worker, lines in written.items():
                self._keep(waiting[worker], lines)

    def _keep(self, pod: Object, lines: list[Line]) -> None:
        uid = pod["metadata"]["uid"]
        before = self.logs.get(uid, (pod, []))[1]
        self.logs[uid] = (pod, max(lines, before, key=len))

    def newest_pods(self, rank: int | str | None = None) -> dict[int | str, Object]:
        """Find the newest existing pod of each rank or replica, or of one, which the run must have."""
        there = self.objects.pods()
        # One that is being deleted counts only where there is no other.
        by_age = sorted(there, key=lambda pod: (not pods.deleted(pod), pod["metadata"]["creationTimestamp"]))
        found = {pods.replica_id(pod): pod for pod in by_age}
        if rank is None:
            return dict(sorted(found.items()))
        main = self.objects.main()
        if job_kinds.servers(main):
            if rank not in found and not pods.is_replica_id(rank):
                raise BadInput(
                    f"the pods of this run are {', '.join(map(str, found)) or 'not there yet'}",
                    about=f"rank={rank!r}",
                    fix='rank="master", rank="ps-0" or rank="worker-0"',
                )
            return {rank: found[rank]} if rank in found else {}
        gone = (pods.replica_id(pod) for pod, _ in self.logs.values())
        ranks = {*range(job_kinds.wanted(main)), *found, *gone}
        if isinstance(rank, bool) or not isinstance(rank, int) or rank not in ranks:
            what = f"the pods of this run have the ranks 0 to {max(ranks)}"
            raise BadInput(what, about=f"rank={rank!r}", fix="rank=0")
        return {rank: found[rank]} if rank in found else {}

    def lines(self, rank: int | str | None = None) -> dict[int | str, list[Line]]:
        """Read the lines of each rank: of existing pods now, of deleted ones as they were kept."""
        chosen = self.newest_pods(rank)
        existing = {pod["metadata"]["uid"] for pod in self.objects.pods()}
        found: dict[int | str, list[Line]] = {}
        for uid, (pod, lines) in self.logs.items():
            if uid not in existing:
                found.setdefault(pods.replica_id(pod), []).extend(lines)
        read = logs.read_if_reachable if rank is None else logs.read
        for number, pod in chosen.items():
            before = self.logs.get(pod["metadata"]["uid"], (pod, []))[1]
            now = read(self.kube, pod)
            found.setdefault(number, []).extend(now if len(now) >= len(before) else before)
        return {number: lines for number, lines in found.items() if rank in (None, number)}


class LogStream:
    """Lines of a run as they are written; iterate over it, or let a notebook show it."""

    def __init__(
        self,
        objects: RunObjects,
        cache: LogCache,
        *,
        rank: int | str | None = None,
        timeout: float,
        part_of: Callable[[str], None] | None = None,
    ) -> None:
        self.objects, self.cache, self.rank = objects, cache, rank
        self.timeout, self.part_of = timeout, part_of
        self.most: int | None = None

    def __iter__(self) -> Iterator[str]:
        return (prefixed(rank, line, self.rank) for rank, line in self.lines())

    def head(self, lines: int) -> Self:
        """Return the first lines alone: following ends with the last of them, and the run goes on."""
        first = copy(self)
        first.most = lines
        return first

    def lines(self) -> Iterator[tuple[int | str, Line]]:
        """Yield each line as it is written, with its rank or the name of its replica."""
        return islice(self._follow(), self.most)

    def _follow(self) -> Iterator[tuple[int | str, Line]]:
        followers = logs.PodLogFollowers(self.objects.kube)
        try:
            for rank, pod in self._wait_for_pods().items():
                followers.follow(pod, rank)
            alive = True
            while alive:
                alive = followers.alive()  # asked first: what they wrote before they ended is taken below
                yield from followers.take(1.0 if alive else 0.0)
        except KeyboardInterrupt as error:
            raise Interrupted(
                "stopped following; the run continues",
                about=self.objects.about,
                fix="run.logs(follow=True) begins again, run.wait() only waits, run.delete() ends it",
            ) from error
        finally:
            followers.close()

    def _wait_for_pods(self) -> dict[int | str, Object]:
        self.cache.newest_pods(self.rank)  # raises for a wrong rank now, not after a wait

        def started(state: tuple[Snapshot, RunStatus]) -> bool:
            seen, status = state
            there = {pods.replica_id(pod) for pod in seen["Pod"].values() if pods.started(pod)}
            complete = self.rank in there if self.rank is not None else len(there) >= status.wanted
            return status.finished or complete

        title = f"run {self.objects.name}"
        with PartialProgress(title, self.part_of) if self.part_of else progress(title) as line:
            wait(
                self.objects.watch(),
                until=started,
                timeout=self.timeout,
                what="the pods to start",
                about=self.objects.about,
                resume="follow the logs again, or run.delete()",
                describe=lambda state: str(state[1]),
                report=line.update,
            )
            if line.last:
                line.done("its output follows")
        return self.cache.newest_pods(self.rank)

    def _ipython_display_(self) -> None:
        for rank, line in self.lines():  # this is the notebook printing: it asked to be shown the lines
            print(readable(rank, line, self.rank), flush=True)

    def __repr__(self) -> str:
        return f'<lines of run "{self.objects.name}" as they come: iterate over them>'


class Log(Text):
    """The output of a run's pods: the text as it was written; a cell shows it as people read it."""

    lines: list[tuple[int | str, Line]]
    only: int | str | None
    note: str

    def __new__(
        cls, lines: Iterable[tuple[int | str, Line]], *, only: int | str | None = None, note: str = ""
    ) -> Self:
        kept = list(lines)
        made = super().__new__(cls, "\n".join(prefixed(rank, line, only) for rank, line in kept))
        made.lines, made.only, made.note = kept, only, note
        return made

    def __repr__(self) -> str:
        return "\n".join(readable(rank, line, self.only) for rank, line in self.lines) or self.note


def prefixed(rank: int | str, line: Line, only: int | str | None) -> str:
    """Put the rank before a line, unless only one rank was requested."""
    return line.text if only is not None else f"[{pods.display_name(rank)}] {line.text}"


def readable(rank: int | str, line: Line, only: int | str | None) -> str:
    """Format a line for people, with its rank, unless only one rank was requested."""
    if only is not None:
        return format_line(line.text)
    name = pods.display_name(rank)
    return f"[{name}] {format_line(line.text, pod=name)}"


def failure(
    status: RunStatus, ended: Iterable[Object], written: Mapping[int | str, Sequence[Line]], *, about: str
) -> RunFailed:
    """Build the error of a failed run: the first traceback, or else the reason of the first failed pod."""
    ended = list(ended)
    fix = "fix it and launch again; run.logs(rank=…) has all that a rank wrote"
    messages = {pods.replica_id(pod): pods.last_message(pod) for pod in ended}
    written = dict(written) | {
        rank: lines for rank, lines in messages.items() if _says_more(lines, written.get(rank))
    }
    found = tracebacks.first(written)
    full = next((pod for pod in ended if pods.status_word(pod) == "OOMKilled"), None)
    if full is not None and (found is None or "SIGKILL" in found.error):
        what = (
            f"{pods.display_name(pods.replica_id(full))} was OOMKilled: it needs more than its memory limit"
        )
        fix = "give it more, memory=…, or less to do: smaller batches, fewer data loader workers"
        return RunFailed(what, about=about, fix=fix, rank=pods.replica_id(full))
    if found is not None and found.rank is not None:
        what = f"{pods.display_name(found.rank)} failed first: {found.error}"
        return RunFailed(what, about=about, fix=fix, detail=found.text, rank=found.rank)
    failed = pods.failed(ended)
    # A Job that gives up deletes the pods of the other ranks, which then fail as well.
    lost = [pod for pod in failed if not pods.deleted(pod)]
    lost = lost or [pod for pod in ended if pods.node_unreachable(pod)] or failed
    rank, what = None, status.reason or "the Job failed"
    texts: list[str] = []
    if lost:
        rank = pods.replica_id(lost[0])
        if not what.startswith(pods.display_name(rank)):  # it was gone when the run was judged
            what = f"{pods.display_name(rank)}: {pods.why(lost[0])}; {what}"
        texts = [line.text for line in written.get(rank, [])]
    report = next((index for index, text in enumerate(texts) if _TORCHRUN.search(text)), len(texts))
    last = "\n".join(texts[: max(report, 1)][-LAST_LINES:])  # before torchrun's report on the end
    return RunFailed(what, about=about, fix=fix, rank=rank, detail=last)


def _says_more(message: Sequence[Line], log: Sequence[Line] | None) -> bool:
    """Tell whether a termination message has more than the log, of which the end may be lost."""
    return bool(message) and (not log or bool(tracebacks.find(message) and not tracebacks.find(log)))
