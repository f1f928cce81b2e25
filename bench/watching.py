"""Watch objects through the API, with the times of changes.

A stream is opened before the change is requested and read afterwards, in one thread: the pipe buffers events,
and nothing is polled. Both sides of a comparison use this code.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from bench.errors import MeasureFailed
from kitlib.k8s.client import Kube, Stream
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

FRESH_SECONDS = 30  # the server ends a watch after 50
TIMEOUT_SECONDS, GONE_SECONDS, ACCOUNT_SECONDS = 180, 120, 60

Event = tuple[str, Object]


class Watch(AbstractContextManager[Any]):
    """A watch of one kind of objects.

    Args:
        kube: The cluster.
        kind: ``Pod``, ``Job`` …
    """

    def __init__(self, kube: Kube, kind: str) -> None:
        self._kube, self._kind = kube, kind
        self._stream: Stream | None = None
        self._events: Iterator[Event] = iter(())
        self._opened = 0.0
        self._version = ""

    def refresh(self) -> None:
        """Reopen an old stream; call it while nothing is awaited."""
        if self._stream is None or time.monotonic() - self._opened > FRESH_SECONDS:
            _, self._version = self._kube.get_all_at(self._kind)
            self._open()

    def until(
        self, condition: Callable[[str, Object], bool], *, what: str, timeout: float = TIMEOUT_SECONDS
    ) -> tuple[float, Object]:
        """Return the monotonic time at which a condition first held, and the object.

        Raises:
            MeasureFailed: It did not within ``timeout`` seconds.
        """
        last, deadline = "nothing", time.monotonic() + timeout
        while time.monotonic() < deadline:
            for kind, item in self._events:
                time_seen = time.monotonic()
                if condition(kind, item):
                    return time_seen, item
                last = f"{kind} {item['metadata'].get('name')}: {json.dumps(item.get('status'))[:400]}"
            self._open()  # the server ends watches regularly; continue from the last version
        raise MeasureFailed(f"{what} was not seen within {timeout:g} s; the last event was {last}")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self) -> None:
        self.close()
        self._stream = self._kube.watch(self._kind, self._version)
        self._events = self._read(self._stream)  # one iterator, as dropping it would close the stream
        self._opened = time.monotonic()

    def _read(self, stream: Stream) -> Iterator[Event]:
        for line in stream:
            change = json.loads(line)
            if change["type"] == "ERROR":
                raise MeasureFailed(f"the watch was ended: {change['object'].get('message')}")
            self._version = change["object"]["metadata"]["resourceVersion"]
            yield change["type"], change["object"]

    def __enter__(self) -> "Watch":
        self.refresh()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def has_started(pod: Object) -> bool:
    """Check whether all containers of a pod run or have run."""
    states = [status["state"] for status in pod["status"].get("containerStatuses") or []]
    return bool(states) and all("running" in state or "terminated" in state for state in states)


def is_complete(job: Object) -> bool:
    """Check whether a Job has succeeded.

    Raises:
        MeasureFailed: It has failed.
    """
    types = {
        condition["type"]: condition
        for condition in job["status"].get("conditions") or []
        if condition["status"] == "True"
    }
    if "Failed" in types:
        raise MeasureFailed(f"Job {job['metadata']['name']} failed: {types['Failed'].get('message')}")
    return "Complete" in types


def wait_account(kube: Kube) -> None:
    """Wait until the namespace has its service account, without which pods are rejected.

    Raises:
        WaitTimeout: It is not created in time.
    """
    wait(
        watch_objects(kube, WatchSpec("ServiceAccount")),
        until=lambda objects: "default" in objects["ServiceAccount"],
        timeout=ACCOUNT_SECONDS,
        what="the default service account",
        about=f'cluster "{kube.cluster}"',
        resume="run the benchmark again",
        describe=lambda objects: f"there are {sorted(objects['ServiceAccount'])}",
    )


def wait_gone(kube: Kube, kind: str = "Pod", *, labels: str) -> None:
    """Wait until no object of a kind matches.

    Raises:
        WaitTimeout: Some still exist.
    """
    wait(
        watch_objects(kube, WatchSpec(kind, labels=labels)),
        until=lambda objects: not objects[kind],
        timeout=GONE_SECONDS,
        what=f"each {kind} to be gone",
        about=f'cluster "{kube.cluster}"',
        resume="run the benchmark again",
        describe=lambda objects: f"{len(objects[kind])} still exist",
    )
