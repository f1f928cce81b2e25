"""Logs of pods: read as they are now, or followed until they end, one pod or many in order of time.

A stream that is cut is resumed where it was, without a gap and without a line twice.
"""

import contextlib
import logging
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kitlib.display.tracebacks import Line, time_key
from kitlib.errors import ClusterUnreachable, KitError, Rejected
from kitlib.k8s import pods
from kitlib.k8s.client import Kube, Stream
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import ErrorGrace

log: logging.Logger = logging.getLogger(__name__)
ANSWER_SECONDS = 10  # what was written comes at once, or its node does not answer
LONGEST_LINE = 2**20  # characters; a pod may write one without end
NO_TIME = "1970-01-01T00:00:00Z"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
RECONNECT_SECONDS = 0.3  # no busy loop where every stream ends at once


def read(kube: Kube, pod: Object) -> list[Line]:
    """Read a pod's log until now; empty if it has not started, or was deleted."""
    return [*_lines(_written(kube, pod, timestamps="true"))]


def last_lines(kube: Kube, pod: Object, container: str) -> list[str]:
    """Read the last lines of any container of a pod; empty if it has not started, or was deleted."""
    return [line for line in _written(kube, pod, container=container, tailLines="20") if line]


def _written(kube: Kube, pod: Object, **params: str) -> Iterator[str]:
    try:
        stream = _open(kube, pod, params, seconds=ANSWER_SECONDS)
    except Rejected as error:
        if error.status in (400, 404):  # 400: its container waits to start
            return
        raise
    yield from stream
    yield stream.rest


def read_if_reachable(kube: Kube, pod: Object) -> list[Line]:
    """Read a pod's log until now; empty, with a warning, if its node does not answer."""
    if pods.node_unreachable(pod):
        return []
    try:
        return read(kube, pod)
    except (Rejected, ClusterUnreachable) as error:  # a node's failure may not be known yet
        if isinstance(error, Rejected) and error.status < 500:
            raise
        log.warning("%s: its log did not come: %s", pod["metadata"]["name"], error.what)
        return []


def complete(kube: Kube, pod: Object) -> bool:
    """Check whether a pod's log is complete."""
    now = kube.find("Pod", pod["metadata"]["name"])
    return now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or pods.finished(now)


def merge(by_rank: Mapping[int | str, Sequence[Line]]) -> list[tuple[int | str, Line]]:
    """Merge the lines of many ranks in the order of their time."""
    lines = [(rank, line) for rank, written in by_rank.items() for line in written]
    return sorted(lines, key=lambda line: (time_key(line[1].time), line[0]))


class LogPosition:
    """The position in a log from which reading resumes without a gap and without a line twice. Pure.

    The API resumes from a whole second. Many lines may have the same time, and those of stdout and stderr are
    not in order to the microsecond: so the lines since that second are counted by their exact times. Lines
    that a rotation removed meanwhile are then counted for no others.

    Args:
        since: A whole second, RFC 3339 without a zone, before which no lines are wanted.
    """

    def __init__(self, since: str = "") -> None:
        self.second: str = since
        self._seen: Counter[str] = Counter()
        self._again: Counter[str] = Counter()

    def resume(self) -> str:
        """Start again; return the time to request logs from, empty for all."""
        self._again = self._seen.copy()
        return f"{self.second}Z" if self.second else ""

    def is_new(self, line: Line) -> bool:
        """Count a line; false if it was read before."""
        if self._again[line.time] > 0:
            self._again[line.time] -= 1
            return False
        second = line.time.partition(".")[0].removesuffix("Z")
        if second > self.second:
            self.second = second
            self._seen.clear()
        self._seen[line.time] += 1
        return True


class PodLogFollower:
    """One pod's log as it is written; iterate in one thread, close from any."""

    def __init__(
        self, kube: Kube, pod: Object, ended: Callable[[], bool], position: LogPosition | None = None
    ) -> None:
        self.kube, self.pod, self.ended = kube, pod, ended
        self.stream: Stream | None = None
        self.position: LogPosition = position or LogPosition()
        self.stopping: threading.Event = threading.Event()

    def close(self) -> None:
        self.stopping.set()
        if self.stream is not None:
            self.stream.close()

    def __iter__(self) -> Iterator[Line]:
        grace, rest, over = ErrorGrace(), "", False
        while not self.stopping.is_set():
            try:
                # Asked before reading: what was written until then is read to its end below. A node that dies
                # ends a stream as its end does, perhaps within a line: the log has ended when reading that of
                # an ended pod brings nothing new, and an unterminated line is whole if it comes twice.
                over, new = self.ended(), False
                for line in self._new_lines():
                    grace.succeeded()
                    new = True
                    yield line
                assert self.stream, "it was opened above"
                if over and not new and not self.stream.cut and rest == self.stream.rest:
                    yield from _lines([rest])
                    return
                rest = self.stream.rest
                if over:
                    continue
            except KitError as error:
                if isinstance(error, Rejected) and error.status in (400, 404):
                    if over:  # it is gone
                        yield from _lines([rest])
                        return
                    error.passing = True  # a kubelet that has just started does not know its pods yet
                grace.failed(error)
            self.stopping.wait(RECONNECT_SECONDS)

    def _new_lines(self) -> Iterator[Line]:
        params = {"timestamps": "true", "sinceTime": self.position.resume(), "follow": "true"}
        self.stream = _open(self.kube, self.pod, params)
        if self.stopping.is_set():  # close() may have come too early to see the stream
            self.stream.close()
        return filter(self.position.is_new, _lines(self.stream))


class PodLogFollowers:
    """The logs of many pods, each followed once by a thread, which ends with its pod or with the iteration.

    A log that could not be read any more is resumed where it was when its pod is followed again.
    """

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.followed: dict[str, PodLogFollower] = {}  # by the pods' uids
        self._positions: dict[str, LogPosition] = {}
        self._refused: KitError | None = None
        self._threads: list[threading.Thread] = []
        self._written: queue.SimpleQueue[tuple[Any, Line | KitError]] = queue.SimpleQueue()

    def follow(self, pod: Object, key: object, *, since: str = "") -> None:
        """Follow a pod whose container has started, from a time on; its lines come with the key."""
        uid = pod["metadata"]["uid"]
        if uid in self.followed:
            return
        position = self._positions.setdefault(uid, LogPosition(since))
        follower = PodLogFollower(self.kube, pod, partial(complete, self.kube, pod), position)
        self.followed[uid] = follower
        thread = threading.Thread(target=self._run, args=(key, follower), name=f"log-{key}", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()

    def alive(self) -> bool:
        """Check whether any of them may bring another line."""
        return any(thread.is_alive() for thread in self._threads)

    def wait_for_lines(self, seconds: float) -> list[tuple[Any, Line]]:
        """Return the lines that have arrived, waiting at most so long for the first.

        A pod whose node does not answer can be followed again; any other error of a follower is raised, after
        the lines that came before it.
        """
        lines, errors = self._next_lines(seconds)
        self._refused = self._refused or next((error for error in errors if not error.passing), None)
        if self._refused is not None and not lines:
            raise self._refused
        return lines

    def drain(self) -> list[tuple[Any, Line]]:
        """Return the lines that have arrived; pods whose follower has failed can be followed again."""
        return self._next_lines(0.0)[0]

    def close(self) -> None:
        """Stop following; lines that have come can still be drained."""
        for follower in list(self.followed.values()):  # which another thread may drain meanwhile
            follower.close()
        for thread in self._threads:
            thread.join(timeout=5)
        self.followed = {}

    def _next_lines(self, seconds: float) -> tuple[list[tuple[Any, Line]], list[KitError]]:
        """Return the lines, in the order of their time, and the errors of followers that have failed."""
        entries: list[tuple[Any, Line | KitError]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                entries.append(self._written.get(timeout=0.0 if entries else seconds))
        lines = [(key, what) for key, what in entries if isinstance(what, Line)]
        failed = [(follower, what) for follower, what in entries if not isinstance(what, Line)]
        for follower, _ in failed:
            self.followed.pop(follower.pod["metadata"]["uid"], None)
        return sorted(lines, key=lambda line: time_key(line[1].time)), [error for _, error in failed]

    def _run(self, key: Any, follower: PodLogFollower) -> None:
        try:
            for line in follower:
                self._written.put((key, line))
        except KitError as error:
            self._written.put((follower, error))


def _open(kube: Kube, pod: Object, params: Mapping[str, str], **waiting: float) -> Stream:
    name = pod["metadata"]["name"]
    path, about = f"{kube.path('Pod', name)}/log", f'the log of pod "{name}"'
    container = {"container": pod["spec"]["containers"][0]["name"]}
    return kube.stream(path, about=about, params={**container, **params}, **waiting)


def _lines(texts: Iterable[str]) -> Iterator[Line]:
    known = NO_TIME
    for text in texts:
        time, _, rest = text[:LONGEST_LINE].partition(" ")
        if _TIME.fullmatch(time):
            known = time
            yield Line(time, rest)
        elif text:  # of the kubelet, where it cannot read the log
            yield Line(known, text[:LONGEST_LINE])
