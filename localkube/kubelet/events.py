"""Events on pods, with the kubelet's reasons, for ``kubectl describe``.

They are posted one by one after status updates, and rate-limited after a burst, as the kubelet's are.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from localkube.api_client import Api, ApiError
from localkube.kubelet.nodes.node import rfc3339

log = logging.getLogger(__name__)

QUEUE, QUEUE_OF_NAMESPACE = 5000, 1250
REMEMBERED = 4096  # as many as the kubelet does
BURST, PER_SECOND = 25, 12.5  # a quarter of what a kubelet may: its machine has other things to do
SETTLE_SECONDS = 0.05


class RateLimiter:
    """A token bucket: the first ``burst`` calls do not wait, later ones come at ``per_second``."""

    def __init__(
        self, burst: float, per_second: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._left, self._then = burst, clock()

    def wait(self) -> float:
        """Take a token; return the seconds to wait for it."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._then) * self._per_second) - 1
        self._then = now
        return max(0.0, -self._left / self._per_second)


class EventRecorder:
    """A queue of Events; a repeated Event raises the count of the first.

    Namespaces take turns, since one pod can cause thousands.

    Args:
        give_way: Waits a moment for what is more urgent.
    """

    def __init__(
        self, api: Api, *, give_way: Callable[[], Awaitable[None]] | None = None, component: str = "kubelet"
    ) -> None:
        self._api, self._give_way, self._component = api, give_way, component
        self._queues: dict[str, deque[tuple[dict[str, Any], tuple]]] = {}
        self._waiting = asyncio.Event()
        self._seen: dict[tuple, tuple[str, int]] = {}
        self._numbers = itertools.count()

    def record(
        self,
        item: Mapping[str, Any],
        reason: str,
        message: str,
        *,
        warning: bool = False,
        field: str = "",
    ) -> None:
        """Queue an Event on an object, by default a pod, or on the part of it at ``field``."""
        meta = item["metadata"]
        namespace = meta.get("namespace", "default")
        key = (meta["uid"], reason, message, field)
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
            "message": message[:1024],
            "source": {"component": self._component, "host": (item.get("spec") or {}).get("nodeName", "")},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        queue = self._queues.get(namespace) or deque()
        if len(queue) >= QUEUE_OF_NAMESPACE or self._size() >= QUEUE:
            log.warning("event dropped: %s %s", meta["name"], reason)
            return
        queue.append((body, key))
        self._queues[namespace] = queue
        self._waiting.set()

    def forget(self, uid: str) -> None:
        for key in [key for key in self._seen if key[0] == uid]:
            del self._seen[key]

    async def run(self) -> None:
        """Post queued Events, for ever."""
        pace = RateLimiter(BURST, PER_SECOND)
        while True:
            await self._waiting.wait()
            body, key = self._next()
            # The pod's status goes first.
            await asyncio.sleep(max(pace.wait(), 0 if self._queues else SETTLE_SECONDS))
            if self._give_way and self._size() < BURST:
                await self._give_way()
            try:
                await self._post(body, key)
            except ApiError as error:
                # A namespace that is being deleted refuses events; nothing is lost that anybody could read.
                log.debug("event %s: %s", body["reason"], error)

    def _next(self) -> tuple[dict[str, Any], tuple]:
        """Take the oldest Event of the namespace whose turn it is."""
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

    async def _post(self, body: dict[str, Any], key: tuple) -> None:
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        if key in self._seen:
            name, count = self._seen[key]
            change = {"count": count + 1, "lastTimestamp": body["lastTimestamp"]}
            try:
                await self._api.patch(f"{path}/{name}", change)
                self._seen[key] = (name, count + 1)
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        await self._api.post(path, body)
        # Bounded, because what is posted after its pod is gone would otherwise stay for ever.
        while len(self._seen) >= REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (body["metadata"]["name"], 1)
