"""What a pod does to those who start: the runtime waits for none, and gives none what is another's."""

import asyncio
import contextlib
import os
import re
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from localkube.runtime import messages
from localkube.runtime.client import RuntimeCallError
from localkube.runtime.launches import ZygoteClient

from ..patience import PATIENCE
from .bare_runtime import BareRuntime, bare_runtime, depth
from .users import USERS

# Each of these directories is found behind forty links, each of many steps.
LINKS, STEPS, DIRECTORIES = 40, 800, 100_000


@pytest.fixture(params=USERS)
async def runtime(request):
    async with bare_runtime(request.param) as running:
        await running.sandbox("slow", 1)
        await running.sandbox("other", 2)
        await running.run("slow.main.0", "sleep", "1000")
        yield running


def slow_path(runtime: BareRuntime) -> str:
    """Return a PATH that takes minutes to search."""
    (runtime.folder / "d").mkdir()
    for number in range(LINKS):
        (runtime.folder / f"l{number}").symlink_to(
            "d/../" * STEPS + f"l{number + 1}" if number < LINKS - 1 else "d"
        )
    return "PATH=" + "/folder/l0:" * DIRECTORIES


def inside(runtime: BareRuntime) -> list[psutil.Process]:
    """Return the processes in containers that are still the runtime's own code."""
    processes = []
    for child in runtime.process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            mounts, above = (Path(f"/proc/{pid}/ns/mnt").readlink() for pid in (child.pid, child.ppid()))
            if "python" in child.name() and depth(child) > runtime.depth and mounts != above:
                processes.append(child)
    return processes


async def searching(runtime: BareRuntime) -> psutil.Process:
    """Wait for a process that searches for its program in the container."""
    await wait_until(lambda: inside(runtime))
    return inside(runtime)[0]


async def wait_until(condition: Callable[[], Any]) -> None:
    """Look again and again: nobody reports what others' processes do."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def memory_of(process: psutil.Process) -> bytes:
    """Read what a process may write to."""
    parts = []
    with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            begin, end, flags = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            if flags.startswith("rw"):
                memory.seek(int(begin, 16))
                parts.append(memory.read(int(end, 16) - int(begin, 16)))
    return b"".join(parts)


async def test_a_long_search_for_a_program_holds_nobody_else_up(runtime):
    search = asyncio.create_task(runtime.execute("slow", "slow.main.0", "nosuch", env=[slow_path(runtime)]))
    await searching(runtime)
    await runtime.run("other.main.0", "true")
    assert await runtime.status("other.main.0") == 0
    await runtime.execute("quick", "slow.main.0", "true")
    assert await runtime.status("quick") == 0
    await runtime.call("socket", pod="other")
    assert not search.done()
    await runtime.call("kill", id="slow", signal=signal.SIGKILL)
    with pytest.raises(RuntimeCallError, match="killed before it had started"):
        await search
    assert (await runtime.call("list"))["entries"][0]["status"] is None


async def test_whoever_searches_in_a_pod_holds_nothing_of_another(runtime):
    mark = f"{os.getpid()}-{time.time_ns()}"
    await runtime.run("other.main.0", "sleep", "999", env=[f"TOKEN={mark}"])
    path = slow_path(runtime)
    search = asyncio.create_task(runtime.execute("slow", "slow.main.0", "nosuch", env=[path]))
    process = await searching(runtime)
    if os.getuid() == 0:  # nobody else may look
        assert mark.encode() not in memory_of(process)
        files = [str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert not any("journal" in file for file in files) and len(files) < 16, files
    search.cancel()


@pytest.mark.parametrize("user", USERS)
async def test_a_start_that_takes_too_long_is_refused_and_nothing_of_it_is_left(user):
    async with bare_runtime(user, launch_seconds=5.0) as runtime:
        await runtime.sandbox("slow", 1)
        await runtime.run("slow.main.0", "sleep", "1000")
        with pytest.raises(RuntimeCallError, match="context deadline exceeded: no start within 5 s"):
            await runtime.execute("slow", "slow.main.0", "nosuch", env=[slow_path(runtime)])
        await wait_until(lambda: not inside(runtime))
        await runtime.execute("quick", "slow.main.0", "true")
        assert await runtime.status("quick") == 0


async def test_a_pod_that_goes_takes_its_starts_with_it(runtime):
    search = asyncio.create_task(
        runtime.execute("slow.main.0.exec.1", "slow.main.0", "nosuch", env=[slow_path(runtime)])
    )
    await searching(runtime)
    await runtime.call("remove_sandbox", pod="slow")
    with pytest.raises(RuntimeCallError, match="the pod is being removed"):
        await search


async def test_a_client_that_reads_no_answers_holds_nobody_else_up(runtime):
    with runtime.raw_connection() as deaf:
        deaf.settimeout(1.0)
        with pytest.raises(TimeoutError):
            for number in range(100_000):
                messages.send(deaf, {"op": "list", "number": number}, [])
        await runtime.execute("quick", "slow.main.0", "true")
        assert await runtime.status("quick") == 0
        # It may take them later: none is lost, and they are in order.
        answers = [messages.receive(deaf)[0] for _ in range(50)]
        assert [answer["answer"] for answer in answers if "answer" in answer] == list(range(50))


async def test_no_end_of_many_short_processes_is_lost(runtime):
    names = [f"other.main.{number}" for number in range(30)]
    await asyncio.gather(*(runtime.run(name, "true") for name in names))
    assert [await runtime.status(name) for name in names] == [0] * len(names)


async def launchers(runtime: BareRuntime) -> tuple[psutil.Process, psutil.Process]:
    """Return the launcher, and the helper that is ahead: the first of its PID namespace.

    There is one as soon as a container was started.
    """
    matches: list[psutil.Process] = []

    def look() -> bool:
        children = runtime.process.children(recursive=True)
        matches[:] = [
            child for child in children if any(word.endswith("launcher.py") for word in child.cmdline())
        ]
        return len(matches) == 2

    await wait_until(look)
    launcher, ahead = sorted(matches, key=depth)
    return launcher, ahead


async def test_containers_start_again_after_the_launcher_was_killed(runtime):
    launcher, _ = await launchers(runtime)
    launcher.kill()
    launcher.wait()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await runtime.run("other.main.0", "true")
                break
            except RuntimeCallError as error:
                assert error.message == "the launcher accepts no requests, or has ended"
    assert await runtime.status("other.main.0") == 0


async def test_a_container_starts_also_where_its_helper_was_killed_ahead(runtime):
    _, ahead = await launchers(runtime)
    ahead.kill()
    ahead.wait()
    await runtime.run("other.main.0", "true")
    assert await runtime.status("other.main.0") == 0


async def test_the_helper_of_the_next_container_ends_with_the_launcher(runtime):
    launcher, ahead = await launchers(runtime)
    launcher.kill()
    ahead.wait(PATIENCE)


def test_a_zygote_that_takes_nothing_more_is_passed_over_until_it_does():
    with selectors.DefaultSelector() as selector, socket.socket() as request:
        client = ZygoteClient(selector)
        with client.connect() as zygote:
            sent = next(number for number in range(100_000) if not client.send(request, {}))
            assert sent and client.runs
            for _ in range(sent):
                _, (descriptor,) = messages.receive(zygote)
                os.close(descriptor)
            assert client.send(request, {})
        assert not client.send(request, {})
        assert not client.runs
