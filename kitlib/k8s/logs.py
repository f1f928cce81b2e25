"""The output of a run's pods: read as it is now, or followed until it ends, of one rank or of all in order
of time.

A stream that is cut is taken up again where it was, without a gap and without a line twice.
What the lines mean is in `metrics` and `tracebacks`.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kitlib.display.tracebacks import Line, time_key
from kitlib.errors import ClusterUnreachable, KitError, Rejected
from kitlib.k8s import pods
from kitlib.k8s.client import Kube, Stream
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import ErrorGrace

ANSWER_SECONDS = 10  # what has been written comes at once, or its node does not answer
RECONNECT_SECONDS = 0.3  # no busy loop where every stream ends at once


def read(kube: Kube, pod: Object) -> list[Line]:
    """Return what a pod has written until now; nothing if it has not begun, or is gone."""
    try:
        stream = _open(kube, pod, follow=False, since="")
        return [*_lines(stream), *_lines([stream.rest])]
    except Rejected as error:
        if error.status in (400, 404):  # 400: its container waits to start
            return []
        raise


def read_if_reachable(kube: Kube, pod: Object) -> list[Line]:
    """Return what a pod has written until now; nothing either if its node does not answer."""
    if pods.node_unreachable(pod):
        return []
    try:
        return read(kube, pod)
    except Rejected as error:
        if error.status < 500:
            raise
        return []
    except ClusterUnreachable:  # nobody knows yet that the node does not answer: the API server waits for it
        return []


def complete(kube: Kube, pod: Object) -> bool:
    """Return whether a pod has written all that it ever will."""
    now = kube.find("Pod", pod["metadata"]["name"])
    return now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or pods.finished(now)


def merge(by_rank: Mapping[int, list[Line]]) -> list[tuple[int, Line]]:
    """Return the lines of many ranks in the order of their time."""
    lines = [(rank, line) for rank, written in by_rank.items() for line in written]
    return sorted(lines, key=lambda each: (time_key(each[1].time), each[0]))


class LogPosition:
    """How far a log has been read, so that it can be taken up again without a gap and without a double. Pure.

    A log is asked for again from a whole second on, since that is what the API takes. Lines keep their times,
    many may have the same one, and those of stdout and stderr are not in order of time to the microsecond: so
    what came since that second is counted by its exact time. What is no longer there, because the log was
    rotated meanwhile, is then counted for nothing else.

    Args:
        since: A whole second, RFC 3339 without a zone, before which nothing is wanted.
    """

    def __init__(self, since: str = "") -> None:
        self.second = since
        self._seen: Counter[str] = Counter()
        self._again: Counter[str] = Counter()

    def resume(self) -> str:
        """Return the time to ask from; empty for all."""
        self._again = self._seen.copy()
        return f"{self.second}Z" if self.second else ""

    def is_new(self, line: Line) -> bool:
        """Return whether a line that came was not there before."""
        if self._again[line.time] > 0:
            self._again[line.time] -= 1
            return False
        second = line.time.partition(".")[0].removesuffix("Z")
        if second > self.second:
            self.second = second
            self._seen.clear()
        self._seen[line.time] += 1
        return True


class LogFollower:
    """One pod's output as it comes; iterate in one thread, close from any.

    Args:
        kube: The cluster.
        pod: A pod whose container has started.
        ended: Tells whether the pod will write no more.
        position: How far an earlier follower has read it.
    """

    def __init__(
        self, kube: Kube, pod: Object, ended: Callable[[], bool], position: LogPosition | None = None
    ) -> None:
        self.kube, self.pod, self.ended = kube, pod, ended
        self.stream: Stream | None = None
        self.position = position or LogPosition()
        self.stopping = threading.Event()

    def close(self) -> None:
        self.stopping.set()
        if self.stream is not None:
            self.stream.close()

    def __iter__(self) -> Iterator[Line]:
        grace, rest, over = ErrorGrace(), "", False
        while not self.stopping.is_set():
            try:
                # Asked before reading: what was written until then is then read to its end. A node that dies
                # ends a stream as its end does, maybe in the middle of a line: the end is where a look at an
                # ended pod brings nothing new, and a line without its end is one if it is there twice.
                over, new = self.ended(), False
                for line in self._lines():
                    grace.succeeded()
                    new = True
                    yield line
                if over and not new and not self.stream.cut and rest == self.stream.rest:
                    yield from _lines([rest])
                    return
                rest = self.stream.rest
                if over:
                    continue
            except KitError as error:
                if isinstance(error, Rejected) and error.status in (400, 404):
                    if over:  # it is gone
                        return
                    error.passing = True  # a kubelet that has just started does not know its pods yet
                grace.failed(error)
            self.stopping.wait(RECONNECT_SECONDS)

    def _lines(self) -> Iterator[Line]:
        """Yield what was written since, until the stream ends."""
        self.stream = _open(self.kube, self.pod, follow=True, since=self.position.resume())
        if self.stopping.is_set():  # close() may have come too early to see the stream
            self.stream.close()
        return filter(self.position.is_new, _lines(self.stream))


class LogFollowers:
    """The output of many pods at once, as it comes: a thread each, which ends with its pod or with the
    iteration.
    """

    def __init__(self) -> None:
        self.lines: queue.SimpleQueue = queue.SimpleQueue()
        self.running: list[tuple[threading.Thread, LogFollower]] = []

    def add(self, who: Any, follower: LogFollower) -> None:
        """Begin to follow a rank, or whatever its lines shall be known by."""
        thread = threading.Thread(target=self._run, args=(who, follower), name=f"log-{who}", daemon=True)
        self.running = [each for each in self.running if each[0].is_alive()] + [(thread, follower)]
        thread.start()

    def alive(self) -> bool:
        """Return whether any of them may still bring a line."""
        return any(thread.is_alive() for thread, _ in self.running)

    def take(self, seconds: float) -> list[tuple[int, Line]]:
        """Return the lines that have come, after waiting at most so long for the first.

        Raises:
            KitError: One of them cannot go on.
        """
        try:
            first = [self.lines.get(timeout=seconds)]
        except queue.Empty:
            return []
        lines, failed = self.drain(first)
        if failed:
            raise failed[0][1]
        return lines

    def drain(
        self, first: Iterable = ()
    ) -> tuple[list[tuple[Any, Line]], list[tuple[LogFollower, KitError]]]:
        """Return the lines that have come, in the order of their time, and the followers that gave up."""
        taken = list(first)
        while not self.lines.empty():
            taken.append(self.lines.get())
        lines = [(who, what) for who, what in taken if isinstance(what, Line)]
        failed = [(who, what) for who, what in taken if not isinstance(what, Line)]
        return sorted(lines, key=lambda each: time_key(each[1].time)), failed

    def close(self) -> None:
        """End them all."""
        for _, follower in self.running:
            follower.close()
        for thread, _ in self.running:
            thread.join(timeout=5)

    def _run(self, who: Any, follower: LogFollower) -> None:
        try:
            for line in follower:
                self.lines.put((who, line))
        except KitError as error:
            self.lines.put((follower, error))


def _open(kube: Kube, pod: Object, *, follow: bool, since: str) -> Stream:
    meta = pod["metadata"]
    path = f"{kube.path('Pod', meta['name'])}/log"
    container = pod["spec"]["containers"][0]["name"]
    return kube.stream(
        path,
        about=f'the log of pod "{meta["name"]}"',
        params={
            "container": container,
            "timestamps": "true",
            "follow": "true" if follow else "",
            "sinceTime": since,
        },
        **({} if follow else {"seconds": ANSWER_SECONDS}),
    )


def _lines(texts: Iterable[str]) -> Iterator[Line]:
    for text in texts:
        time, _, rest = text.partition(" ")
        if time:
            yield Line(time, rest)
