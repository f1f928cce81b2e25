"""Events on pods, with the kubelet's reasons, for ``kubectl describe``.

They are posted one by one after status updates, and rate-limited after a burst, as the kubelet's are.
Repeated Events are counted, combined or dropped by the rules of upstream's EventCorrelator:
https://github.com/kubernetes/client-go/blob/v0.37.2/tools/record/events_cache.go
"""

import asyncio
import itertools
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from localkube.api_client import Api
from localkube.api_path import api_path
from localkube.errors import ApiError

log = logging.getLogger(__name__)

QUEUE, QUEUE_OF_NAMESPACE = 5000, 1250
CACHE_ENTRIES = 4096  # objects; in the kubelet, Events
BURST, PER_SECOND = 25, 12.5  # a quarter of a kubelet's: this machine does other work, too
SETTLE_SECONDS = 0.05
MESSAGE_CHARACTERS = 1024
# For one object, of Events of one type: the first are sent, then one in five minutes.
SPAM_BURST, SPAM_PER_SECOND = 25, 1 / 300
# Events that differ in their messages alone are combined from the tenth within ten minutes on.
SIMILAR_EVENTS, SIMILAR_SECONDS = 10, 600.0
COMBINED = "(combined from similar events): "


class RateLimiter:
    """A token bucket: the first ``burst`` calls do not wait, later ones come at ``per_second``."""

    def __init__(
        self, burst: float, per_second: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._tokens, self._updated_at = burst, clock()

    def wait(self) -> float:
        """Take a token; return the seconds to wait for it."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._updated_at) * self._per_second) - 1
        self._updated_at = now
        return max(0.0, -self._tokens / self._per_second)

    def try_take(self) -> bool:
        delay = self.wait()
        self._tokens += 1 if delay else 0
        return not delay


@dataclass
class _ObjectEvents:
    """The Events of one object so far: their rate, the messages of similar ones, and those that were sent."""

    pace: dict[tuple[str, ...], RateLimiter] = field(default_factory=dict)
    similar: dict[tuple[str, ...], tuple[set[str], float]] = field(default_factory=dict)
    posted: dict[tuple[str, ...], tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Occurrence:
    """An Event after correlation; ``name`` is empty for the first of its kind, which is created."""

    message: str
    count: int = 1
    name: str = ""
    key: tuple[str, ...] = ()


@dataclass
class EventCorrelator:
    """Counts repeated Events, combines similar ones, and drops those of an object that has too many."""

    clock: Callable[[], float] = time.monotonic
    burst: int = SPAM_BURST
    _objects: OrderedDict[str, _ObjectEvents] = field(default_factory=OrderedDict)  # by uid, the newest last

    def admit(self, body: Mapping[str, Any]) -> bool:
        """Check whether an Event of this object may be sent at all."""
        key = (*_object_of(body), body["type"])
        pace = self._object(key).pace
        if key not in pace:
            pace[key] = RateLimiter(self.burst, SPAM_PER_SECOND, clock=self.clock)
        return pace[key].try_take()

    def correlate(self, body: Mapping[str, Any]) -> Occurrence:
        """Combine an Event with those like it, and count it."""
        now = self.clock()
        key = (*_object_of(body), body["type"], body["reason"])
        known = self._object(key)
        messages, since = known.similar.get(key, (set(), now))
        if now - since > SIMILAR_SECONDS:
            messages = set()
        message = body["message"]
        messages.add(message)
        known.similar[key] = messages, now
        if len(messages) >= SIMILAR_EVENTS:
            messages.pop()
            message = (COMBINED + message)[:MESSAGE_CHARACTERS]
        else:
            key = (*key, body["involvedObject"].get("fieldPath", ""), message)
        name, count = known.posted.get(key, ("", 0))
        return Occurrence(message, count + 1, name, key)

    def posted(self, occurrence: Occurrence) -> None:
        """Record an Event that the API server has accepted."""
        self._object(occurrence.key).posted[occurrence.key] = occurrence.name, occurrence.count

    def forget(self, uid: str) -> None:
        """Forget a deleted object."""
        self._objects.pop(uid, None)

    def _object(self, key: tuple[str, ...]) -> _ObjectEvents:
        known = self._objects.setdefault(key[0], _ObjectEvents())
        self._objects.move_to_end(key[0])
        if len(self._objects) > CACHE_ENTRIES:
            self._objects.popitem(last=False)
        return known


def _object_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    item, source = body["involvedObject"], body["source"]
    return item.get("uid", ""), item["kind"], item.get("namespace", ""), item["name"], *source.values()


class EventRecorder:
    """A queue of Events; a repeated Event raises the count of the first.

    Namespaces take turns, since one pod can cause thousands.

    Args:
        wait_until_idle: Waits until no pod is starting, at most two seconds.
    """

    def __init__(
        self,
        api: Api,
        *,
        wait_until_idle: Callable[[], Awaitable[None]] | None = None,
        component: str = "kubelet",
    ) -> None:
        self._api, self._wait_until_idle, self._component = api, wait_until_idle, component
        self._queues: dict[str, deque[dict[str, Any]]] = {}
        self._waiting = asyncio.Event()
        self._correlator = EventCorrelator()
        self._numbers = itertools.count()

    def record(
        self, item: Mapping[str, Any], reason: str, message: str, *, warning: bool = False, field: str = ""
    ) -> None:
        """Queue an Event on an object, by default a pod, or on the part of it at ``field``."""
        meta = item["metadata"]
        namespace = meta.get("namespace", "default")
        message = message[:MESSAGE_CHARACTERS]
        now = rfc3339()
        body = {
            "metadata": {
                "name": f"{meta['name'][:200]}.{time.time_ns():x}{next(self._numbers) % 4096:03x}",
                "namespace": namespace,
            },
            "involvedObject": {
                "kind": item.get("kind", "Pod"),
                "apiVersion": "v1",
                "name": meta["name"],
                "uid": meta["uid"],
            }
            | ({"namespace": namespace} if "namespace" in meta else {})
            | ({"fieldPath": field} if field else {}),
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": (item.get("spec") or {}).get("nodeName", "")},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        if not self._correlator.admit(body):
            return
        queue = self._queues.get(namespace) or deque()
        if len(queue) >= QUEUE_OF_NAMESPACE or self._size() >= QUEUE:
            log.warning("event dropped: %s %s", meta["name"], reason)
            return
        queue.append(body)
        self._queues[namespace] = queue
        self._waiting.set()

    def forget(self, uid: str) -> None:
        self._correlator.forget(uid)

    async def run(self) -> None:
        """Post queued Events."""
        pace = RateLimiter(BURST, PER_SECOND)
        while True:
            await self._waiting.wait()
            body = self._next()
            # The pod's status goes first.
            await asyncio.sleep(max(pace.wait(), 0 if self._queues else SETTLE_SECONDS))
            if self._wait_until_idle and self._size() < BURST:
                await self._wait_until_idle()
            try:
                await self._post(body)
            except ApiError as error:
                # A namespace that is being deleted refuses Events, which could not be read either.
                log.debug("event %s: %s", body["reason"], error)

    def _next(self) -> dict[str, Any]:
        """Take the oldest Event of the next namespace."""
        namespace = next(iter(self._queues))
        queue = self._queues.pop(namespace)
        item = queue.popleft()
        if queue:
            self._queues[namespace] = queue
        if not self._queues:
            self._waiting.clear()
        return item

    def _size(self) -> int:
        return sum(map(len, self._queues.values()))

    async def _post(self, body: dict[str, Any]) -> None:
        namespace = body["metadata"]["namespace"]
        occurrence = self._correlator.correlate(body)
        body["message"] = occurrence.message
        if occurrence.name:
            change = {name: body[name] for name in ("lastTimestamp", "message")} | {"count": occurrence.count}
            try:
                path = api_path("v1/events", namespace=namespace, name=occurrence.name)
                await self._api.patch(path, change)
                self._correlator.posted(occurrence)
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        await self._api.post(api_path("v1/events", namespace=namespace), body)
        self._correlator.posted(replace(occurrence, name=body["metadata"]["name"], count=1))


def rfc3339(*, micro: bool = False) -> str:
    """Format the current time as the API does; ``micro`` for MicroTime fields."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
