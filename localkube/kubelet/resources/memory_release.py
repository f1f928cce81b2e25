"""Gives memory back to the machine after much of it was used for a while.

What one namespace has the kubelet compute leaves garbage in cycles, which Python looks for the less often the
more objects there are, and free memory that glibc keeps: https://man7.org/linux/man-pages/man3/malloc_trim.3.html.
"""

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

PERIOD_SECONDS = 20.0
GROWTH_BYTES = 16 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def release_memory(*, resident: Callable[[], int] | None = None) -> None:
    """Collect garbage and trim the heap each time the process has more than it began with, for ever."""
    resident = resident or resident_bytes
    begun_with = resident()
    gc.freeze()  # what is loaded stays
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        if resident() > begun_with + GROWTH_BYTES:
            gc.collect()  # of some thousands of objects for each pod: tens of milliseconds
            await asyncio.to_thread(_trim)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps less
    if trim:
        trim(0)
