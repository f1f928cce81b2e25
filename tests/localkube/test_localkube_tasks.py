"""Waiting for the first of several, and files that are written whole or not at all."""

import asyncio
import resource

import pytest

from localkube.paths import write_private
from localkube.tasks import wait_for_first


async def waits_for_ever():
    await asyncio.Event().wait()


@pytest.mark.parametrize("seconds", [None, 0.01])
def test_wait_for_first_cancels_the_other_tasks(seconds):
    async def wait():
        works = [waits_for_ever(), *([] if seconds else [asyncio.sleep(0)])]
        first = await wait_for_first(*works, seconds=seconds)
        return first.cancelled(), len(asyncio.all_tasks())

    assert asyncio.run(wait()) == (True, 1)


def test_a_wait_that_is_cancelled_leaves_no_task_behind():
    async def wait():
        waiting = asyncio.create_task(wait_for_first(waits_for_ever(), waits_for_ever()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return len(asyncio.all_tasks())

    assert asyncio.run(wait()) == 1


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one_and_no_part(tmp_path):
    path = tmp_path / "state.json"
    write_private(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            write_private(path, "as on a full disk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("state.json", "old")]
