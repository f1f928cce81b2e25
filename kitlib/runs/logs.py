"""A run's logs: kept when pods are deleted, streamed as they are written.

The API server only has the logs of existing pods. A failing Job deletes pods that still run, an elastic
run the pods that it does not need, the Training Operator all of them. So logs are read in time, and
kept by the `Run` that watches. Reading one pod is in `kitlib.k8s.logs`.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Self

from kitlib.display.progress import PartialProgress, progress
from kitlib.display.tables import SHOWN_LINES, Text, shorten
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput, Interrupted, KitError
from kitlib.k8s import job_kinds, logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.metrics.log_format import format_line
from kitlib.runs.status import RUNNING, RunObjects, RunStatus


class LogCache:
    """The logs of a run's pods, kept for when the pods are deleted: pod and lines by the pod's uid."""

    def __init__(self, objects: RunObjects) -> None:
        self.objects: RunObjects = objects
        self.kube: Kube = objects.kube
        self.logs: dict[str, tuple[Object, list[Line]]] = {}
        self._ended: set[str] = set()

    def refresh(self, run_pods: Iterable[Object]) -> None:
        """Read the logs of these pods; earlier lines of a pod on an unreachable node are kept."""
        for pod in run_pods:
            self._keep(pod, logs.read_if_reachable(self.kube, pod))

    def refresh_ending(self, run_pods: Collection[Object]) -> None:
        """Read all logs at the first failure, later those of pods that fail or are deleted.

        Failed ones first: some operators delete them as soon as they have seen it.
        """
        ending = [
            pod
            for pod in run_pods
            if pods.phase(pod) == "Failed" or (pods.deleted(pod) and not pods.node_unreachable(pod))
        ]
        new = [pod for pod in ending if pod["metadata"]["uid"] not in self._ended]
        if new:
            self.refresh([*new, *([] if self._ended else [pod for pod in run_pods if pod not in new])])
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
            for snapshot in watch_objects(self.kube, WatchSpec("Pod", labels=names.RUN)):
                by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot["Pod"].values()}
                live_pods = {uid: by_uid[uid] for uid in waiting if uid in by_uid}
                waiting |= live_pods
                for pod in filter(pods.started, live_pods.values()):
                    followers.follow(pod, pod["metadata"]["uid"])
                alive = followers.alive()  # read first: lines from before their end are taken below
                for uid, line in followers.wait_for_lines(0.1 if alive else 0.0):
                    written[uid].append(line)
                remaining = [pod["metadata"]["name"] for pod in live_pods.values()]
                if not alive and not remaining or time.monotonic() > end:
                    break
                leave = f"{', '.join(remaining)} to leave" if remaining else "their last lines"
                report(f"waiting for {leave}")
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
        live_pods = self.objects.pods()
        # One that is being deleted counts only where there is no other.
        by_age = sorted(
            live_pods, key=lambda pod: (not pods.deleted(pod), pod["metadata"]["creationTimestamp"])
        )
        newest = {pods.replica_id(pod): pod for pod in by_age}
        if rank is None:
            return dict(sorted(newest.items()))
        main = self.objects.main()
        if job_kinds.servers(main):
            if rank not in newest and not pods.is_replica_id(rank):
                what = f"the pods of this run are {', '.join(map(str, newest)) or 'not created yet'}"
                fix = '`rank="master"`, `rank="ps-0"` or `rank="worker-0"`'
                raise BadInput(what, about=f"rank={rank!r}", fix=fix)
            return {rank: newest[rank]} if rank in newest else {}
        deleted = (pods.replica_id(pod) for pod, _ in self.logs.values())
        ranks = {*range(job_kinds.desired(main)), *newest, *deleted}
        if isinstance(rank, bool) or not isinstance(rank, int) or rank not in ranks:
            what = f"the pods of this run have the ranks 0 to {max(ranks)}"
            raise BadInput(what, about=f"rank={rank!r}", fix="`rank=0`")
        return {rank: newest[rank]} if rank in newest else {}

    def lines(self, rank: int | str | None = None) -> dict[int | str, list[Line]]:
        """Read the lines of each rank: of existing pods now, of deleted ones as they were kept."""
        chosen = self.newest_pods(rank)
        existing = {pod["metadata"]["uid"] for pod in self.objects.pods()}
        by_rank: dict[int | str, list[Line]] = {}
        for uid, (pod, lines) in self.logs.items():
            if uid not in existing:
                by_rank.setdefault(pods.replica_id(pod), []).extend(lines)
        read = logs.read_if_reachable if rank is None else logs.read
        for number, pod in chosen.items():
            before = self.logs.get(pod["metadata"]["uid"], (pod, []))[1]
            now = read(self.kube, pod)
            by_rank.setdefault(number, []).extend(now if len(now) >= len(before) else before)
        return {number: lines for number, lines in by_rank.items() if rank in (None, number)}


class RunMembers:
    """Follows the log of each pod of a run as it starts, in a thread, until the run has ended.

    Workers join an elastic run later, and pods of a Job replace others: a list at the beginning misses them.

    Attributes:
        ended: Set when no pod will start any more, or the API could not be read.
    """

    def __init__(
        self, objects: RunObjects, followers: logs.PodLogFollowers, *, only: int | str | None = None
    ) -> None:
        self.objects, self.followers, self.only = objects, followers, only
        self.ended: threading.Event = threading.Event()
        self._stopping = threading.Event()
        self._error: KitError | None = None
        self._thread = threading.Thread(target=self._run, name=f"members-{objects.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(self, run_pods: Iterable[Object]) -> None:
        """Follow those pods that have started, the older ones first."""
        for pod in sorted(
            filter(pods.started, run_pods), key=lambda pod: pod["metadata"]["creationTimestamp"]
        ):
            if self.only in (None, pods.replica_id(pod)):
                self.followers.follow(pod, pods.replica_id(pod))

    def check(self) -> None:
        """Raise the error that has ended the watch."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            for snapshot, status in self.objects.watch():
                self.follow(snapshot["Pod"].values())
                if self._stopping.is_set():
                    return
                if status.finished or self._has_succeeded(snapshot["Pod"].values()):
                    self.follow(self.objects.pods())  # their watch may be behind that of the main object
                    return
        except KitError as error:
            self._error = error
        finally:
            self.ended.set()

    def _has_succeeded(self, run_pods: Iterable[Object]) -> bool:
        """Check whether the only rank has succeeded, after which nothing replaces its pod."""
        return self.only is not None and any(
            pods.replica_id(pod) == self.only and pods.phase(pod) == "Succeeded" for pod in run_pods
        )


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
        self.limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        return (prefixed(rank, line, self.rank) for rank, line in self.lines())

    def head(self, lines: int) -> Self:
        """Limit it to the first lines: following ends after them, and the run continues."""
        first = copy(self)
        first.limit = lines
        return first

    def lines(self) -> Iterator[tuple[int | str, Line]]:
        """Yield each line as it is written, with its rank or the name of its replica."""
        return islice(self._follow(), self.limit)

    def _follow(self) -> Iterator[tuple[int | str, Line]]:
        self.cache.newest_pods(self.rank)  # raises for a wrong rank now, not after a wait
        followers = logs.PodLogFollowers(self.objects.kube)
        members = RunMembers(self.objects, followers, only=self.rank)
        try:
            self._wait_for_pods(members)
            members.start()
            over = False
            while not over:
                # Read first: lines from before their end are taken below.
                over = members.ended.is_set() and not followers.alive()
                yield from followers.wait_for_lines(0.0 if over else 1.0)
            members.check()
        except KeyboardInterrupt as error:
            what = "stopped following; the run continues"
            fix = "`run.logs(follow=True)` begins again, `run.wait()` only waits, `run.delete()` ends it"
            raise Interrupted(what, about=self.objects.about, fix=fix) from error
        finally:
            members.stop()
            followers.close()

    def _wait_for_pods(self, members: "RunMembers") -> None:
        def started(state: tuple[Snapshot, RunStatus]) -> bool:
            snapshot, status = state
            members.follow(snapshot["Pod"].values())  # one that comes and goes meanwhile has been followed
            ranks = {pods.replica_id(pod) for pod in snapshot["Pod"].values() if pods.started(pod)}
            complete = self.rank in ranks if self.rank is not None else status.phase == RUNNING
            return status.finished or complete

        title = f"run {self.objects.name}"
        with PartialProgress(title, self.part_of) if self.part_of else progress(title) as line:
            wait(
                self.objects.watch(),
                until=started,
                timeout=self.timeout,
                what="the pods to start",
                about=self.objects.about,
                resume="follow the logs again, or `run.delete()`",
                describe=lambda state: str(state[1]),
                report=line.update,
            )
            if line.last:
                line.done("its output follows")

    def _ipython_display_(self) -> None:
        for rank, line in self.lines():  # the notebook prints here, not the library
            print(readable(rank, line, self.rank), flush=True)

    def __repr__(self) -> str:
        return f'<lines of run "{self.objects.name}" as they are written: iterate over them>'


class Log(Text):
    """The output of a run's pods: the text as it was written; a cell shows its end, formatted."""

    lines: list[tuple[int | str, Line]]
    only: int | str | None
    note: str

    def __new__(
        cls, lines: Iterable[tuple[int | str, Line]], *, only: int | str | None = None, note: str = ""
    ) -> Self:
        entries = list(lines)
        text = super().__new__(cls, "\n".join(prefixed(rank, line, only) for rank, line in entries))
        text.lines, text.only, text.note = entries, only, note
        return text

    def __repr__(self) -> str:
        call = f"print(run.logs({'' if self.only is None else f'rank={self.only!r}'}))"
        lines = [readable(rank, line, self.only) for rank, line in self.lines[-SHOWN_LINES:]]
        return shorten(lines, call, hidden=max(0, len(self.lines) - SHOWN_LINES)) or self.note


def prefixed(rank: int | str, line: Line, only: int | str | None) -> str:
    """Put the rank before a line, unless only one rank was requested."""
    return line.text if only is not None else f"[{pods.display_name(rank)}] {line.text}"


def readable(rank: int | str, line: Line, only: int | str | None) -> str:
    """Format a line for people, with its rank, unless only one rank was requested."""
    if only is not None:
        return format_line(line.text)
    name = pods.display_name(rank)
    return f"[{name}] {format_line(line.text, pod=name)}"
