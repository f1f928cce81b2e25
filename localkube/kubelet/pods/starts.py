"""The pods that are starting: deferrable work waits a moment until they have started.

On a machine with few cores, Events and the removal of a deleted pod's files would delay the next pod's start.
"""

import asyncio
import contextlib
from collections.abc import Mapping

LONGEST_SECONDS = 2.0


class StartingPods:
    """Counts the pods that are starting, so that deferrable work can wait for them.

    A pod that takes longer than two seconds, as with an image to pull, no longer counts.

    Args:
        stalls: How often the work of each pod has blocked the kubelet's event loop, by uid.
    """

    def __init__(self, stalls: Mapping[str, int] | None = None) -> None:
        self.stalls = stalls or {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, uid: str) -> None:
        """Count a pod, until ``end`` or for two seconds."""
        self.end(uid)
        self._timers[uid] = asyncio.get_running_loop().call_later(LONGEST_SECONDS, self.end, uid)
        self._idle.clear()

    def end(self, uid: str) -> None:
        """Stop counting a pod; idempotent."""
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        if not self._timers:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no pod is starting, for two seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SECONDS):
                await self._idle.wait()
