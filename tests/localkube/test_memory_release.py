"""The kubelet gives back what it used for a while."""

import asyncio
import gc
import weakref

from localkube.kubelet.resources import memory_release


class Cycle:
    def __init__(self):
        self.own = self


async def test_garbage_in_cycles_is_collected_once_the_process_has_grown(monkeypatch):
    monkeypatch.setattr(memory_release, "PERIOD_SECONDS", 0.001)
    size = 0
    gc.disable()
    try:
        async with asyncio.timeout(10):
            release = asyncio.create_task(memory_release.release_memory(resident=lambda: size))
            await asyncio.sleep(0)
            collected = asyncio.Event()
            garbage = weakref.ref(Cycle(), lambda _: collected.set())
            await asyncio.sleep(0.05)
            assert garbage()
            size = memory_release.GROWTH_BYTES + 1
            await collected.wait()
        release.cancel()
    finally:
        gc.enable()
        gc.unfreeze()
