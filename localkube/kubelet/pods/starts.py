"""The pods that are starting: work that can wait does, for a moment, until they have started.

On a machine with few cores the files of a pod that is gone, and Events, would take the time of the next one.
"""

import asyncio
import contextlib
from collections.abc import Mapping

LONGEST_SECONDS = 2.0


class StartingPods:
    """Counts the pods that start; one that takes longer, as with an image to pull, no longer counts.

    Args:
        stalls: How often the work of each pod has made the kubelet stand still, by uid.
    """

    def __init__(self, stalls: Mapping[str, int] | None = None) -> None:
        self.stalls = stalls or {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._none = asyncio.Event()
        self._none.set()

    def begin(self, uid: str) -> None:
        """Count a pod, until ``end`` or for two seconds."""
        self.end(uid)
        self._timers[uid] = asyncio.get_running_loop().call_later(LONGEST_SECONDS, self.end, uid)
        self._none.clear()

    def end(self, uid: str) -> None:
        """Count a pod no longer; harmless when repeated."""
        if timer := self._timers.pop(uid, None):
            timer.cancel()
        if not self._timers:
            self._none.set()

    async def give_way(self) -> None:
        """Wait until no pod starts, for two seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_SECONDS):
                await self._none.wait()
