"""Strange objects and processes do not end the kubelet; a failure that it cannot go on after does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.api_client import Informer
from localkube.kubelet.pods.pod_manager import PodManager  # noqa: F401 - its imports come before limits'
from localkube.kubelet.resources.limits import resident

PROGRAM = """
import asyncio
from localkube.tasks import start_task
async def fail():
    raise RuntimeError("of no use")
async def main():
    start_task(fail(), name="the provisioner", critical={critical})
    await asyncio.sleep(0.2)
    print("goes on")
asyncio.run(main())
"""


@pytest.mark.parametrize(("critical", "code", "output"), [(True, 1, ""), (False, 0, "goes on\n")])
def test_a_critical_task_that_fails_ends_its_process_and_another_does_not(critical, code, output):
    program = PROGRAM.format(critical=critical)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, output), done.stderr
    assert "RuntimeError: of no use" in done.stderr


async def test_an_object_that_a_callback_cannot_take_does_not_end_the_watch_of_the_others():
    class Pages:
        async def get(self, path, **params):
            items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in ("strange", "usual")]
            return {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }

    names = []

    def take(change, item, before):
        if item["metadata"]["name"] == "strange":
            raise KeyError("no such field")
        names.append(item["metadata"]["name"])

    informer = Informer(Pages(), "/api/v1/pods")
    informer.subscribe(take)
    await informer._list()
    assert names == ["usual"]


@pytest.mark.parametrize(
    "name", [b"\xff\xfe\xfd", b"\x0bRssAnon: many"], ids=["no text", "a line of its own"]
)
def test_a_processes_name_does_not_end_the_watch_over_memory(name):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        Path("/proc/self/comm").write_bytes(name)
        os.write(writing, b"named")
        signal.pause()
    try:
        assert os.read(reading, 5) == b"named"
        assert resident([child]) > 0
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
