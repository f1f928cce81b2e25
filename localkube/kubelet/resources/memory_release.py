"""Return memory to the machine after a peak in the kubelet's use.

A burst of work leaves garbage in cycles, which Python collects less often the more objects exist, and free
memory that glibc keeps: https://man7.org/linux/man-pages/man3/malloc_trim.3.html.
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
    """Collect garbage and trim the heap whenever the process has grown since its start."""
    resident = resident or resident_bytes
    at_start = resident()
    gc.freeze()  # loaded modules are permanent
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        if resident() > at_start + GROWTH_BYTES:
            gc.collect()  # some thousands of objects per pod: tens of milliseconds
            await asyncio.to_thread(_trim)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps less
    if trim:
        trim(0)
