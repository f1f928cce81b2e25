"""Tasks whose failure is seen: a bug in one pod's life must not vanish with its task."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


def start_task(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task:
    """Start a task that logs the traceback of its failure at once."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task) -> None:
    if not task.cancelled() and task.exception():
        log.error("%s failed", task.get_name(), exc_info=task.exception())
