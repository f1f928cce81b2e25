"""Wait, by a watch, until an object is as a test wants it."""

import asyncio
import contextlib

from localkube.api_client import Api, Informer

from ..patience import PATIENCE


async def until(api: Api, path: str, condition, *, timeout: float = PATIENCE):
    """Return the first object of the collection at ``path`` for which ``condition(change, object)`` holds.

    Raises:
        AssertionError: None did in time; the message shows all that were seen last.
    """
    first_match = asyncio.get_running_loop().create_future()
    watch = Informer(api, path)

    def look(change, item, before):
        if not first_match.done() and condition(change, item):
            first_match.set_result(item)

    watch.subscribe(look)
    task = asyncio.create_task(watch.run())
    try:
        return await asyncio.wait_for(first_match, timeout)
    except TimeoutError as error:
        raise AssertionError(f"not seen within {timeout} s; there is {list(watch.store.values())}") from error
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
