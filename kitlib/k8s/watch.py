"""Following objects as they change: snapshots of whole collections, for `waiting.wait` and for tables that
live.

One thread a collection lists and watches it; when a watch ends, is too old (410) or is cut, it quietly lists
again. The threads end with the iteration, and nothing is polled.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kitlib.errors import KitError
from kitlib.k8s.client import Kube, Stream
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import Patience

TICK_SECONDS = 1.0

# The kind -> the object's name, in a watch of all namespaces behind its namespace and a slash -> the object.
Snapshot = dict[str, dict[str, Object]]


@dataclass(frozen=True)
class WatchSpec:
    """Which objects to follow.

    Attributes:
        kind: ``Pod``, ``Job`` …
        labels: A label selector.
        fields: A field selector.
        seen: Called by the watch's thread with each state of each object, also with those that a snapshot
            leaves out because a later one has come, and with the last one of an object that is deleted.
    """

    kind: str
    labels: str = ""
    fields: str = ""
    seen: Callable[[Object], None] | None = None


class _Follower:
    """A thread that follows one selection, from a listing on, and puts what it sees into a queue."""

    def __init__(self, kube: Kube, selection: WatchSpec, seen: queue.SimpleQueue) -> None:
        self.kube, self.selection, self.seen = kube, selection, seen
        self.chosen = {"labels": selection.labels, "fields": selection.fields}
        self.objects, self.version = self._list()
        self.stopping = threading.Event()
        self.stream: Stream | None = None
        self.thread = threading.Thread(target=self._run, name=f"watch-{selection.kind}", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        if self.stream is not None:
            self.stream.close()

    def _list(self) -> tuple[dict[str, Object], str]:
        items, version = self.kube.get_all_at(self.selection.kind, **self.chosen)
        for each in items if self.selection.seen else ():
            self.selection.seen(each)
        return {self._key(each): each for each in items}, version

    def _key(self, item: Object) -> str | None:
        meta = item["metadata"]
        name = meta.get("name")
        return name if self.kube.namespace else f"{meta.get('namespace', '')}/{name}"

    def _run(self) -> None:
        failures = 0
        while not self.stopping.is_set():
            try:
                self._watch()
                if not self.stopping.is_set():
                    self.objects, self.version = self._list()
                    self._put(dict(self.objects))
                failures = 0
            except KitError as error:
                self._put(error)
                failures += 1
                self.stopping.wait(min(0.2 * 2**failures, 3))
            except Exception as error:  # noqa: BLE001 - a bug of ours, raised where the watch_objects are read
                self._put(error)
                return

    def _watch(self) -> None:
        self.stream = self.kube.watch(self.selection.kind, self.version, **self.chosen)
        if self.stopping.is_set():  # stop() may have come too early to see the stream
            self.stream.close()
        for line in self.stream:
            change = json.loads(line)
            if change["type"] == "ERROR":
                return
            if self.selection.seen and change["type"] != "BOOKMARK":
                self.selection.seen(change["object"])
            name = self._key(change["object"])
            if change["type"] == "DELETED":
                self.objects.pop(name, None)
            elif change["type"] != "BOOKMARK":
                self.objects[name] = change["object"]
            self._put(dict(self.objects))

    def _put(self, what: object) -> None:
        self.seen.put((self.selection.kind, what))


def watch_objects(kube: Kube, *selections: WatchSpec) -> Iterator[Snapshot]:
    """Yield what there is now, then again after each change, and at least once a second.

    Args:
        kube: The cluster.
        selections: Of different kinds.

    Raises:
        KitError: The cluster does not answer; or it stopped to, and did not come back within half a minute.
    """
    seen: queue.SimpleQueue = queue.SimpleQueue()
    followers: list[_Follower] = []
    try:
        for selection in selections:
            followers.append(_Follower(kube, selection, seen))
        yield from _merge(seen, {each.selection.kind: dict(each.objects) for each in followers})
    finally:
        for follower in followers:
            follower.stop()
        for follower in followers:
            follower.thread.join(timeout=5)


def _merge(seen: queue.SimpleQueue, state: Snapshot) -> Iterator[Snapshot]:
    patience = Patience()
    while True:
        yield dict(state)
        for kind, what in _take(seen):
            if isinstance(what, KitError):
                patience.failed(what)
            elif isinstance(what, Exception):
                raise what
            else:
                state[kind] = what
                patience.succeeded()


def _take(seen: queue.SimpleQueue) -> list[tuple[str, object]]:
    """Return all that has come, after waiting at most a tick for the first."""
    try:
        taken = [seen.get(timeout=TICK_SECONDS)]
    except queue.Empty:
        return []
    while not seen.empty():
        taken.append(seen.get())
    return taken
