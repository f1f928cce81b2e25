"""Watches: snapshots of whole collections of objects as they change, for `wait.wait` and for live tables.

One thread a collection lists and watches it; when a watch ends, is too old (410) or is cut, it lists again.
The threads end with the iteration, and nothing is polled.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from kitlib.errors import KitError
from kitlib.k8s.client import Kube, Stream, allowed
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import ErrorGrace

TICK_SECONDS = 1.0

# Objects by kind and by name; in a watch of all namespaces the name is namespace/name.
Snapshot = dict[str, dict[str, Object]]
Changes = queue.SimpleQueue[tuple[str, dict[str, Object] | Exception]]


@dataclass(frozen=True)
class WatchSpec:
    """The objects to watch.

    Attributes:
        kind: ``Pod``, ``Job`` …
        labels: A label selector.
        fields: A field selector.
        on_object: Called by the watch's thread with each state of each object, also with states that no
            snapshot has because a later one has come, and with the last one of a deleted object.
        optional: Whether snapshots go without this kind where the user may not list it.
    """

    kind: str
    labels: str = ""
    fields: str = ""
    on_object: Callable[[Object], None] | None = None
    optional: bool = False


class _Watcher:
    """A thread that lists and watches one collection, and puts each of its states into a queue."""

    def __init__(self, kube: Kube, spec: WatchSpec, changes: Changes) -> None:
        self.kube, self.spec, self.changes = kube, spec, changes
        self.selectors = {"labels": spec.labels, "fields": spec.fields}
        self.objects, self.version = self._list()
        self.stopping = threading.Event()
        self.stream: Stream | None = None
        self.thread = threading.Thread(target=self._run, name=f"watch-{spec.kind}", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        if self.stream is not None:
            self.stream.close()

    def _list(self) -> tuple[dict[str, Object], str]:
        items, version = self.kube.get_all_at(self.spec.kind, **self.selectors)
        if self.spec.on_object:
            for item in items:
                self.spec.on_object(item)
        return {self._key(item): item for item in items}, version

    def _key(self, item: Object) -> str:
        meta = item["metadata"]
        name = meta.get("name", "")  # a bookmark has none
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
            except Exception as error:  # noqa: BLE001 - a bug of ours, raised where the snapshots are read
                self._put(error)
                return

    def _watch(self) -> None:
        self.stream = self.kube.watch(self.spec.kind, self.version, **self.selectors)
        if self.stopping.is_set():  # stop() may have come too early to see the stream
            self.stream.close()
        for line in self.stream:
            change = json.loads(line)
            if change["type"] == "ERROR":
                return
            if self.spec.on_object and change["type"] != "BOOKMARK":
                self.spec.on_object(change["object"])
            name = self._key(change["object"])
            if change["type"] == "DELETED":
                self.objects.pop(name, None)
            elif change["type"] != "BOOKMARK":
                self.objects[name] = change["object"]
            self._put(dict(self.objects))

    def _put(self, what: dict[str, Object] | Exception) -> None:
        self.changes.put((self.spec.kind, what))


def watch_objects(kube: Kube, *specs: WatchSpec) -> Iterator[Snapshot]:
    """Yield objects of different kinds now, again after each change, and at least once a second."""
    changes: Changes = queue.SimpleQueue()
    watchers: list[_Watcher] = []
    grace = ErrorGrace()
    try:
        for spec in specs:
            start = partial(_Watcher, kube, spec, changes)
            if (watcher := allowed(start) if spec.optional else start()) is not None:
                watchers.append(watcher)
        state = {watcher.spec.kind: dict(watcher.objects) for watcher in watchers}
        while True:
            yield dict(state)
            for kind, what in _take(changes):
                if isinstance(what, KitError):
                    grace.failed(what)
                elif isinstance(what, Exception):
                    raise what
                else:
                    state[kind] = what
                    grace.succeeded()
    finally:
        for watcher in watchers:
            watcher.stop()
        for watcher in watchers:
            watcher.thread.join(timeout=5)


def _take(changes: Changes) -> list[tuple[str, dict[str, Object] | Exception]]:
    try:
        batch = [changes.get(timeout=TICK_SECONDS)]
    except queue.Empty:
        return []
    while not changes.empty():
        batch.append(changes.get())
    return batch
