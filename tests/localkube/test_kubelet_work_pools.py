"""Walks through files take turns by namespace, and never take what a container's start needs."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from localkube.kubelet.heartbeat import work_of
from localkube.kubelet.volumes.persistent_volume import set_group
from localkube.kubelet.work_pools import MESSAGE_BYTES, SLICE_SECONDS, Pace, Turns, WorkPool
from localkube.runtime.trees import disk_blocks, disk_usage, removal


def task_of(namespace, work):
    with work_of({"metadata": {"uid": "u", "namespace": namespace}}):
        return asyncio.create_task(work)


def endless(stop):
    while not stop.is_set():
        time.sleep(SLICE_SECONDS / 10)
        yield


async def test_a_neighbours_walk_passes_eight_walks_of_one_namespace():
    pool, stop = WorkPool("test", threads=2), threading.Event()
    hostile = [task_of("hostile", pool.walk(endless(stop))) for _ in range(8)]
    await asyncio.sleep(4 * SLICE_SECONDS)
    done = []
    for number in range(5):
        await task_of("neighbour", pool.walk(iter(range(100))))
        done.append(number)
        # What containers' starts call is in threads of its own.
        assert await asyncio.to_thread(lambda: "started") == "started"
    assert not any(task.done() for task in hostile)
    stop.set()
    await asyncio.gather(*hostile)
    assert pool._turns._users == {}


async def test_walks_of_more_namespaces_than_threads_take_turns():
    pool, stop = WorkPool("test", threads=1), threading.Event()
    hostile = [task_of(f"hostile-{number}", pool.walk(endless(stop))) for number in range(6)]
    await asyncio.sleep(2 * SLICE_SECONDS)
    await task_of("neighbour", pool.walk(iter(range(100))))
    assert await task_of("neighbour", pool.call(lambda: 3)) == 3
    assert await task_of("neighbour", pool.sum(iter([1, 2, 3]))) == 6
    stop.set()
    await asyncio.gather(*hostile)


async def test_a_cancelled_walk_ends_with_its_slice():
    pool, stop = WorkPool("test", threads=1), threading.Event()
    walk = task_of("one", pool.walk(endless(stop)))
    await asyncio.sleep(2 * SLICE_SECONDS)
    walk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walk
    await task_of("one", pool.walk(iter(())))
    assert pool._turns._users == {}


async def test_the_error_of_a_walk_reaches_who_waits_for_it():
    pool = WorkPool("test", threads=1)

    def failing():
        yield
        raise PermissionError("closed")

    with pytest.raises(PermissionError):
        await pool.walk(failing())


async def test_trees_are_measured_given_and_removed_in_slices(tmp_path):
    pool, root = WorkPool("test", threads=1), Path(tmp_path) / "tree"
    for number in range(50):
        (root / f"d{number}").mkdir(parents=True)
        (root / f"d{number}" / "file").write_text("x" * 5000)
    assert await pool.sum(disk_blocks(root)) == disk_usage(root) > 0
    await pool.walk(set_group(root, root.stat().st_gid))
    assert (root / "d7" / "file").stat().st_mode & 0o660 == 0o660
    await pool.walk(removal(root))
    assert not root.exists()


async def test_requests_of_one_namespace_leave_connections_to_others_and_to_the_node():
    turns, busy = Turns(2), 0

    async def request():
        nonlocal busy
        async with turns.of_pods():
            busy += 1
            await asyncio.Event().wait()

    hostile = [task_of("hostile", request()) for _ in range(1000)]
    neighbours = [task_of("neighbour", request()), asyncio.create_task(request())]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert busy == 2 + len(neighbours)
    for task in (*hostile, *neighbours):
        task.cancel()
    await asyncio.gather(*hostile, *neighbours, return_exceptions=True)
    assert turns._users == {}


async def test_streams_of_one_namespace_share_its_rate_and_a_neighbours_does_not_wait():
    pace = Pace(rate=10**9, burst=10 * 10**6)
    start = asyncio.get_running_loop().time()
    hostile = [task_of("hostile", pace.pass_on(10**6 - MESSAGE_BYTES)) for _ in range(310)]
    neighbour = task_of("neighbour", pace.pass_on(10**6))
    await asyncio.wait_for(neighbour, 0.1)
    assert sum(task.done() for task in hostile) < 200
    await asyncio.gather(*hostile)
    assert asyncio.get_running_loop().time() - start > 0.29


async def test_an_endless_sender_learns_that_its_connection_is_lost():
    pace, lost = Pace(rate=10**12, burst=10**12), []
    asyncio.get_running_loop().call_soon(lost.append, True)
    for _ in range(100):
        await pace.pass_on(65536)
        if lost:
            return
    raise AssertionError("the loop had no turn")
