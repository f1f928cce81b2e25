"""Background tasks that are kept until they end, and log their failure.

The event loop holds tasks weakly, so an unreferenced one may be collected while it waits.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)
_running: set[asyncio.Task] = set()


def start_task(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task:
    """Start a task that logs a failure at once."""
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception():
        log.error("%s failed", task.get_name(), exc_info=task.exception())
