"""A followed log has each line once: of pods that join later, restart, are deleted, or are cut off."""

import collections
import itertools
import threading

import pytest

import kitlib as kit
from kitlib.errors import RunFailed
from kitlib.k8s.client import Stream

from ..patience import until
from ..rows import slow

pytestmark = pytest.mark.cluster
LINES = 51
PRINTS = f"""
    import os, pathlib, socket, sys, time
    path = pathlib.Path("/workspace/life")
    life = int(path.read_text()) + 1 if path.exists() else 0
    path.write_text(str(life))
    name = os.environ.get("POD", socket.gethostname())
    for number in range({LINES}):
        print(f"{{name}}.{{life}} {{number}}", flush=True)
        time.sleep(0.05)
"""
POD = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]


def _patch(command, *, job=None, **spec):
    container = {"name": "pytorch", "command": command, "env": POD}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    return {"spec": (job or {}) | {"template": {"spec": pod}}}


@pytest.fixture
def launch_printing(write_trainer, launch):
    """Launch pods that print numbered lines, and then do what a test says."""

    def start(ending, *, nodes=1, **patch):
        path = write_trainer(PRINTS + ending)
        command = ["python", f"/trainyard/trainer/{path.name}"]
        return launch(kit.IndexedJob(path, nodes=nodes).patch(_patch(command, **patch)))

    return start


def _numbers(lines):
    """Group the numbers by the life of a pod's container."""
    numbers = collections.defaultdict(list)
    for line in lines:
        name, _, number = line.rpartition(" ")
        if number.isdigit():
            numbers[name.rpartition("] ")[2]].append(int(number))
    return numbers


def _assert_each_once(lines, lives):
    by_container = _numbers(lines)
    assert len(by_container) == lives, by_container.keys()
    assert all(sorted(numbers) == list(range(LINES)) for numbers in by_container.values()), by_container


def test_the_lines_of_a_container_that_restarts_come_once_each(launch_printing):
    run = launch_printing("    sys.exit(life < 1)\n", job={"backoffLimit": 4}, restartPolicy="OnFailure")
    _assert_each_once(run.logs(follow=True), 2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("log-", "watch-"))]


@pytest.mark.parametrize("rank", [None, *slow(0)])
def test_the_lines_of_pods_that_replace_failed_ones_come_once_each(rank, launch_printing):
    run = launch_printing("    sys.exit(1)\n", job={"backoffLimit": 1})
    _assert_each_once(run.logs(rank=rank, follow=True), 2)
    with pytest.raises(RunFailed):
        run.wait()


def test_the_lines_of_a_pod_that_replaces_a_deleted_one_come_once_each(launch_printing, local_cluster):
    run = launch_printing("    time.sleep(2)\n", nodes=2, job={"backoffLimit": 2})
    stream = iter(run.logs(follow=True))
    lines = list(itertools.islice(stream, 10))
    local_cluster.kube.delete("Pod", run.objects.pods()[0]["metadata"]["name"])
    lines += stream
    by_container = _numbers(lines)
    assert len(by_container) == 3
    assert sorted(map(len, by_container.values()))[1:] == [LINES, LINES]
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in by_container.values())


def test_a_line_is_neither_lost_nor_repeated_where_the_connection_is_cut(launch_printing, monkeypatch):
    def cut(stream, iterate=Stream.__iter__):
        for number, line in enumerate(iterate(stream)):
            yield line
            if number == 40:  # more than a second has, from which the API resumes
                stream.cut = True
                stream.close()
                return

    run = launch_printing("", nodes=2)
    monkeypatch.setattr(Stream, "__iter__", cut)
    _assert_each_once(run.logs(follow=True), 2)


def test_workers_that_join_a_run_later_or_replace_another_are_followed(write_trainer, launch, local_cluster):
    path = write_trainer(PRINTS + "    while not os.path.exists('/workspace/end'): time.sleep(0.1)\n")
    command = ["python", f"/trainyard/trainer/{path.name}"]
    worker = {"name": "worker", "command": command, "env": POD}
    job = kit.TorchElastic(path, nodes=1, min_nodes=1, max_nodes=4)
    run = launch(
        job.patch({"template": {"spec": {"containers": [worker], "terminationGracePeriodSeconds": 1}}})
    )
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(run.logs(follow=True)))
    reader.start()
    try:
        for workers, lives in ((2, 2), (1, 2), (3, 4)):
            run.scale(workers)
            until(lambda lives=lives: sum(map(len, _numbers(lines).values())) >= LINES * lives, "all lines")
    finally:
        run.delete()
        reader.join(timeout=60)
    assert not reader.is_alive()
    _assert_each_once(lines, 4)
