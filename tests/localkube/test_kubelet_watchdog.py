"""An event loop that stands still is ended by the watchdog, which knows whose work it was."""

import asyncio
import contextlib
import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from localkube.kubelet import heartbeat
from localkube.kubelet.heartbeat import (
    CURRENT,
    MAX_STALLS,
    STALLS,
    Heartbeat,
    Watchdog,
    stall_outcome,
    stalls,
    work_of,
)

KUBELET = """
import asyncio, sys
from pathlib import Path
from localkube.kubelet.heartbeat import Heartbeat, work_of

async def deep():
    await asyncio.sleep(0.1)
    {work}
    await asyncio.sleep(60)

async def main():
    heart = Heartbeat(Path(sys.argv[1]), late=print)
    beats = asyncio.create_task(heart.run())
    with work_of({{"metadata": {{"uid": "innocent", "namespace": "n"}}}}):
        other = asyncio.create_task(asyncio.sleep(60))
    with work_of({{"metadata": {{"uid": "guilty", "namespace": "n"}}}}):
        pod = asyncio.create_task(asyncio.wait_for(deep(), 60))
    await asyncio.sleep(0.3)
    print("alive", flush=True)
    await pod

asyncio.run(main())
"""
# Python code, a regular expression, which holds the interpreter, and a wait that computes nothing.
SPINNING = {"a loop": "while True: pass", "an expression": 'import re; re.match("(a+)+$", "a" * 60 + "b")'}


def awake():
    event = asyncio.Event()
    event.set()
    return event


def pod(uid):
    return {"metadata": {"uid": uid, "namespace": "n"}}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "STALL_SECONDS", 1.5)
    monkeypatch.setattr(heartbeat, "COMPUTING", 0.02)


@contextlib.asynccontextmanager
async def watching(root: Path):
    task = asyncio.create_task(Watchdog(root, awake()).run())
    yield
    task.cancel()


async def run_kubelet(root: Path, work: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        KUBELET.format(work=work),
        str(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("work", SPINNING)
async def test_a_loop_that_stands_still_is_ended_and_the_pod_is_remembered(tmp_path, work):
    async with watching(tmp_path):
        for count in (1, 2):
            kubelet = await run_kubelet(tmp_path, SPINNING[work])
            _, written = await asyncio.wait_for(kubelet.communicate(), 60)
            assert kubelet.returncode == -signal.SIGABRT
            assert b'File "<string>"' in written and b"in deep" in written
            assert stalls(tmp_path) == {"guilty": count}
    assert stall_outcome(1) is None
    assert stall_outcome(MAX_STALLS)[1] == "KubeletStalled"


async def test_a_loop_that_works_or_was_stopped_goes_on(tmp_path):
    async with watching(tmp_path):
        kubelet = await run_kubelet(tmp_path, "pass")
        assert await kubelet.stdout.readline() == b"alive\n"
        os.kill(kubelet.pid, signal.SIGSTOP)
        await asyncio.sleep(3)
        os.kill(kubelet.pid, signal.SIGCONT)
        await asyncio.sleep(2)
        assert kubelet.returncode is None
        kubelet.kill()
        await kubelet.wait()
    assert stalls(tmp_path) == {}


async def test_a_pods_task_has_a_coroutine_as_python_demands_since_3_12(tmp_path):
    loop = asyncio.get_running_loop()
    Heartbeat(tmp_path, late=print)
    try:
        with work_of(pod("mine")):
            task = asyncio.create_task(asyncio.sleep(0, "slept"))
        assert inspect.iscoroutine(task.get_coro())
        assert await task == "slept"
    finally:
        loop.set_task_factory(None)


class Content(dict):
    """What a pod names; weak references to it tell whether it is in memory."""


async def test_a_failed_step_releases_its_memory_at_once(tmp_path):
    """It is a ConfigMap of a megabyte, and a pod's containers fail by the hundred."""
    loop = asyncio.get_running_loop()
    Heartbeat(tmp_path, late=print)
    left = []

    async def compute():
        content = Content()
        left.append(weakref.ref(content))
        await loop.run_in_executor(None, fail, content)

    def fail(content):
        raise ZeroDivisionError

    async def start():
        with contextlib.suppress(ZeroDivisionError):
            await compute()

    gc.disable()
    try:
        with work_of(pod("one")):
            await asyncio.create_task(start())
        assert left[0]() is None
    finally:
        gc.enable()
        loop.set_task_factory(None)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": "x"}', "3"])
def test_a_spoiled_record_of_stalls_is_none(tmp_path, content):
    (tmp_path / STALLS).write_text(content)
    assert stalls(tmp_path) == {}


async def test_the_record_of_stalls_is_bounded(tmp_path, monkeypatch):
    (tmp_path / STALLS).write_text(json.dumps({f"pod-{number}": 1 for number in range(1000)}))
    (tmp_path / CURRENT).write_bytes(b"guilty\0\0")
    watchdog = Watchdog(tmp_path, awake())
    killed = []
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    watchdog._end(10.0)
    assert len(stalls(tmp_path)) == heartbeat.RECORDED_PODS
    assert stalls(tmp_path)["guilty"] == 1
    assert killed[0][1] == signal.SIGABRT
