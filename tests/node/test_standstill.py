"""Starts that stand still: the part to blame is named soon, with its log; what is only slow is waited for.

A stopped cluster is started again and again, so that a start that fails leaves it as it was.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ..rows import slow
from .clusters import REPOSITORY, Refused, answer, localkube, running_cluster, state_home


@pytest.fixture(scope="module")
def cluster(request):
    with (
        state_home(request.config.cache.mkdir("standstill")) as home,
        running_cluster("--nodes", "1", home=home) as running,
    ):
        running.localkube("stop")
        yield running


@pytest.fixture
def start(cluster):
    """Begin ``start``, and return its process when the supervisor is about to run; its end is awaited."""
    processes = []

    def start(*options):
        process = subprocess.Popen(
            [sys.executable, "-m", "localkube", "start", cluster.name, *options],
            env=os.environ | {"XDG_STATE_HOME": str(cluster.home), "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        for line in process.stdout:
            if json.loads(line).get("progress") == "starting the control plane":
                return process
        raise AssertionError(process.communicate())

    yield start
    for process in processes:
        process.communicate()
        cluster.localkube("stop")


def part(starting, name):
    """Return the process of a part as soon as it runs what it is for."""
    while starting.poll() is None:
        for process in psutil.Process(starting.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if name in [Path(word).name for word in process.cmdline()[:3]]:
                    return process
    raise AssertionError(f"{name} did not run: {starting.communicate()}")


def refused(starting):
    with pytest.raises(Refused) as caught:
        answer(*starting.communicate())
    return caught.value.error


@pytest.mark.parametrize(
    ("program", "name"),
    [("etcd", "etcd"), *slow(("kube-apiserver", "kube-apiserver"), ("localkube.kubelet", "kubelet"))],
)
def test_a_part_that_is_stopped_while_the_cluster_starts_is_named(start, program, name):
    starting = start("--progress-deadline", "5")
    part(starting, program).suspend()
    error = refused(starting)
    assert f"{name} stands still: it has not run for 5 s" in error["what"]
    assert f"the lines of {name}" in error["fix"]


def test_a_supervisor_that_is_killed_is_named(start):
    starting = start()
    os.kill(part(starting, "localkube.supervisor").pid, signal.SIGKILL)
    assert "the supervisor has ended with status -9" in refused(starting)["what"]


def test_a_part_that_ends_as_soon_as_it_is_started_is_named_with_what_it_wrote(cluster):
    (database,) = cluster.root.glob("etcd/member/snap/db")
    database.write_bytes(b"damaged" * 10_000)
    with pytest.raises(Refused) as caught:
        localkube("start", cluster.name, home=cluster.home)
    assert "etcd has ended at once " in caught.value.error["what"]
    assert "\n  etcd: " in caught.value.error["what"]
    assert "the lines of etcd" in caught.value.error["fix"]
