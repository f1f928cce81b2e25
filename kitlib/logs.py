"""The output of a run's pods: read as it is now, or followed until it ends, of one rank or of all in order
of time.

A stream that is cut is taken up again at the last line's time, without a gap and without a line twice.
What the lines mean is in `metrics` and `tracebacks`.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping

from kitlib.errors import KitError, Rejected
from kitlib.kube import Kube, Stream
from kitlib.manifests import Object
from kitlib.tracebacks import Line, time_key
from kitlib.waiting import Patience

RECONNECT_SECONDS = 0.3  # no busy loop where every stream ends at once


def read(kube: Kube, pod: Object) -> list[Line]:
    """Return what a pod has written until now; nothing if it has not begun, or is gone."""
    try:
        return list(_lines(_open(kube, pod, follow=False, after="")))
    except Rejected as error:
        if error.status in (400, 404):  # 400: its container waits to start
            return []
        raise


def read_if_reachable(kube: Kube, pod: Object) -> list[Line]:
    """Return what a pod has written until now; nothing either if its node does not answer."""
    try:
        return read(kube, pod)
    except Rejected as error:
        if error.status < 500:
            raise
        return []


def merge(by_rank: Mapping[int, list[Line]]) -> list[tuple[int, Line]]:
    """Return the lines of many ranks in the order of their time."""
    lines = [(rank, line) for rank, written in by_rank.items() for line in written]
    return sorted(lines, key=lambda each: (time_key(each[1].time), each[0]))


class Follower:
    """One pod's output as it comes; iterate in one thread, close from any.

    Args:
        kube: The cluster.
        pod: A pod whose container has started.
        ended: Tells whether the pod will write no more.
    """

    def __init__(self, kube: Kube, pod: Object, ended: Callable[[], bool]) -> None:
        self.kube, self.pod, self.ended = kube, pod, ended
        self.stream: Stream | None = None
        self.stopping = threading.Event()

    def close(self) -> None:
        self.stopping.set()
        if self.stream is not None:
            self.stream.close()

    def __iter__(self) -> Iterator[Line]:
        patience, last = Patience(), ""
        while not self.stopping.is_set():
            try:
                over = (
                    self.ended()
                )  # asked before reading: what was written until then is then read to its end
                for line in self._lines(last):
                    last = line.time
                    patience.succeeded()
                    yield line
                if over:
                    return
            except KitError as error:
                if isinstance(error, Rejected) and error.status in (400, 404):  # it is gone
                    return
                patience.failed(error)
            self.stopping.wait(RECONNECT_SECONDS)

    def _lines(self, after: str) -> Iterator[Line]:
        """Yield what was written after the line of that time, until the stream ends."""
        self.stream = _open(self.kube, self.pod, follow=True, after=after)
        if self.stopping.is_set():  # close() may have come too early to see the stream
            self.stream.close()
        return (line for line in _lines(self.stream) if time_key(line.time) > time_key(after))


class Followers:
    """The output of many pods at once, as it comes: a thread each, which ends with its pod or with the
    iteration.
    """

    def __init__(self) -> None:
        self.lines: queue.SimpleQueue = queue.SimpleQueue()
        self.running: dict[int, tuple[threading.Thread, Follower]] = {}

    def add(self, rank: int, follower: Follower) -> None:
        """Begin to follow a rank."""
        thread = threading.Thread(target=self._run, args=(rank, follower), name=f"log-{rank}", daemon=True)
        self.running[rank] = thread, follower
        thread.start()

    def alive(self) -> bool:
        """Return whether any of them may still bring a line."""
        return any(thread.is_alive() for thread, _ in self.running.values())

    def take(self, seconds: float) -> list[tuple[int, Line]]:
        """Return the lines that have come, after waiting at most so long for the first."""
        try:
            taken = [self.lines.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self.lines.empty():
            taken.append(self.lines.get())
        for _, what in taken:
            if isinstance(what, Exception):
                raise what
        return sorted(taken, key=lambda each: time_key(each[1].time))

    def close(self) -> None:
        """End them all."""
        for _, follower in self.running.values():
            follower.close()
        for thread, _ in self.running.values():
            thread.join(timeout=5)

    def _run(self, rank: int, follower: Follower) -> None:
        try:
            for line in follower:
                self.lines.put((rank, line))
        except KitError as error:
            self.lines.put((rank, error))


def _open(kube: Kube, pod: Object, *, follow: bool, after: str) -> Stream:
    meta = pod["metadata"]
    path = f"{kube.path('Pod', meta['name'])}/log"
    container = pod["spec"]["containers"][0]["name"]
    whole_second = f"{after.partition('.')[0].removesuffix('Z')}Z" if after else ""
    return kube.stream(
        path,
        about=f'the log of pod "{meta["name"]}"',
        params={
            "container": container,
            "timestamps": "true",
            "follow": "true" if follow else "",
            "sinceTime": whole_second,
        },
    )


def _lines(stream: Stream) -> Iterator[Line]:
    for text in stream:
        time, _, rest = text.partition(" ")
        if time:
            yield Line(time, rest)
