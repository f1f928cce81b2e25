"""Background tasks that are referenced until they end, and log their failure.

The event loop holds tasks weakly, so an unreferenced one may be collected while it waits.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)
_running: set[asyncio.Task[None]] = set()


def start_task(work: Coroutine[Any, Any, Any], *, name: str, critical: bool = False) -> asyncio.Task[None]:
    """Start a task that logs a failure at once.

    Args:
        critical: This process cannot work without it: a failure ends the process at once, as a kill would,
            and the supervisor restarts it.
    """
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_report)
    if critical:
        task.add_done_callback(_end_process)
    return task


async def wait_for_first(*works: Awaitable[Any], seconds: float | None = None) -> asyncio.Future[Any]:
    """Wait until one of these ends, or until the timeout; cancel all others, also when this is cancelled.

    Returns:
        The first argument's task: done, or cancelled if another one or the timeout came first.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks[0]


async def run_together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of these; a failure of one cancels the rest."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


def _report(task: asyncio.Task[None]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception():
        log.error("%s failed", task.get_name(), exc_info=task.exception())


def _end_process(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception():
        log.critical("this process cannot work without %s: it ends, and will be restarted", task.get_name())
        os._exit(1)
