"""Faults while two ranks train: what dies comes back, and the run neither ends nor loses a line for it.

Nodes that are switched off or cut off are in ``test_node_faults``.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time

import pytest

import kitlib as kit
from kitlib.errors import KitError

from ..patience import PATIENCE, until
from ..rows import slow
from .ranks import STEPS, at_step, component, containers

pytestmark = pytest.mark.cluster

COMPONENTS = ["kubelet", "kube-apiserver", *slow("etcd", "kube-controller-manager", "kube-scheduler")]


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_run_outlives_the_death_of(own_cluster, train, name):
    run = train(own_cluster)
    lines = at_step(run, 5)
    before = component(own_cluster, name)
    before.kill()
    assert list(lines) == [str(number) for number in range(6, STEPS)]
    assert run.wait(timeout=120).phase == "Succeeded"
    assert [pod["restarts"] for pod in run.pods()] == [0, 0]
    assert run.logs(rank=1).splitlines() == [str(number) for number in range(STEPS)]
    until(lambda: (now := component(own_cluster, name)) and now.pid != before.pid, f"another {name}")


def test_a_killed_container_fails_the_run_and_names_its_rank(own_cluster, train):
    run = train(own_cluster)
    at_step(run, 3)
    containers(own_cluster, run)[1].kill()
    with pytest.raises(kit.RunFailed) as failed:
        run.wait(timeout=120)
    assert failed.value.rank is not None
    assert {pod["status"] for pod in run.pods()} <= {"Error", "Failed", "Completed"}


def test_a_stopped_rank_holds_the_others_and_the_run_goes_on_with_it(own_cluster, train):
    run = train(own_cluster)
    lines = at_step(run, 3)
    process = containers(own_cluster, run)[1]
    process.suspend()

    def reached():
        return int(run.logs(rank=0).splitlines()[-1])

    until(lambda: reached() == (time.sleep(1), reached())[1], "what was on its way to be in the log")
    step = reached()
    time.sleep(2)  # nothing to watch: that nothing happens is what is looked at
    assert reached() <= step + 1
    assert {pod["status"] for pod in run.pods()} == {"Running"}
    process.resume()
    assert list(lines) == [str(number) for number in range(4, STEPS)]
    assert run.wait(timeout=120).phase == "Succeeded"


class Writer(threading.Thread):
    """Creates ConfigMaps one after the other, and keeps the names of those that the API has acknowledged."""

    def __init__(self, cluster):
        super().__init__(name="writer")
        self.kube, self.acknowledged, self.stopping = cluster.kube, [], threading.Event()
        self.first = threading.Event()

    def run(self):
        number = 0
        while not self.stopping.is_set():
            number += 1
            name = f"written-{secrets.token_hex(3)}-{number}"
            with contextlib.suppress(KitError):
                self.kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
                self.acknowledged.append(name)
                self.first.set()

    def stop(self):
        self.stopping.set()
        self.join()


@pytest.fixture
def writer(own_cluster):
    writing = Writer(own_cluster)
    writing.start()
    assert writing.first.wait(PATIENCE)
    yield writing
    writing.stop()


def stored(cluster):
    return {item["metadata"]["name"] for item in cluster.kube.get_all("ConfigMap")}


@pytest.mark.parametrize("name", ["etcd", *slow("kube-apiserver")])
def test_nothing_that_was_acknowledged_is_lost_with(own_cluster, writer, name):
    for _ in range(2):
        before = component(own_cluster, name)
        acknowledged = len(writer.acknowledged)
        before.kill()
        until(lambda acknowledged=acknowledged: len(writer.acknowledged) > acknowledged + 20)
    writer.stop()
    assert len(writer.acknowledged) > 40
    assert set(writer.acknowledged) <= stored(own_cluster)


@pytest.mark.slow
def test_acknowledged_objects_and_the_run_survive_the_supervisor(own_cluster, train, writer):
    """Last of all: the cluster ends and is started again, by the same call that made it."""
    run = train(own_cluster)
    at_step(run, 3)
    os.kill(own_cluster.status["processes"]["supervisor"]["pid"], signal.SIGKILL)
    fix = f'(?s)supervisor.*kit.connect."{own_cluster.name}", start=True'
    with pytest.raises(kit.errors.ClusterBroken, match=fix):
        run.wait(timeout=120)
    assert "supervisor" in repr(run)  # showing an object never fails
    with pytest.raises(kit.errors.ClusterBroken):
        kit.connect(own_cluster.name)
    assert "stopped" in repr(kit.list_clusters())
    writer.stop()
    again = kit.connect(own_cluster.name, start=True)
    assert set(writer.acknowledged) <= stored(again)
    with pytest.raises(kit.RunFailed, match="rank 0 failed first: .*the cluster was stopped") as failed:
        again.run(run.name).wait(timeout=120)
    assert "launch" in failed.value.fix
    fresh = train(again, steps=5)
    assert fresh.wait(timeout=120).phase == "Succeeded"


FULL = """
import os, pathlib, sys
import kitlib as kit
home, trainer = map(pathlib.Path, sys.argv[1:])
with kit.create_cluster("local", name="full", nodes=1, warm=False) as cluster:
    def write(name):
        cluster.kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    write("before")
    containers = [{"name": "pytorch", "command": ["python", f"/trainyard/trainer/{trainer.name}"]}]
    job = kit.IndexedJob(trainer, nodes=1).patch({"spec": {"template": {"spec": {"containers": containers}}}})
    run = kit.launch(job, cluster=cluster)
    for line in run.logs(rank=0, follow=True):
        break
    filler = home / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(2**16)):
                pass
        except OSError as error:
            print("full:", error.strerror)
    write("during")
    print("run:", run.wait(timeout=120).phase)
    print("output lost:", 0 < len(run.logs(rank=0).splitlines()) < 30)
    filler.unlink()
    write("after")
    names = {each["metadata"]["name"] for each in cluster.kube.get_all("ConfigMap")}
    print("kept:", {"before", "during", "after"} <= names)
    for pressure in ("true", "false"):  # seen within ten seconds, and for five minutes
        cluster.kubectl(f"wait node/node-0 --for=condition=DiskPressure={pressure} --timeout=400s")
    again = kit.launch(kit.IndexedJob(trainer, nodes=1).patch(
        {"spec": {"template": {"spec": {"containers": containers}}}}), cluster=cluster)
    print("again:", again.wait(timeout=120).phase)
"""
CHATTER = """
import time
for number in range(30):
    print(number, "x" * 10000, flush=True)
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk, which only root may")
def test_a_disk_that_fills_during_a_run_costs_output_and_nothing_else(tmp_path, write_trainer):
    trainer = write_trainer(CHATTER)
    home = tmp_path / "home"
    home.mkdir()
    script = 'mount -t tmpfs -o size=300m,mode=700 none "$1" && exec "$0" -c "$3" "$1" "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, str(home), str(trainer), FULL],
        env=os.environ | {"XDG_STATE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    expected = [
        "full: No space left on device",
        "run: Succeeded",
        "output lost: True",
        "kept: True",
        "again: Succeeded",
    ]
    assert [line for line in done.stdout.splitlines() if ": " in line] == expected, done.stdout + done.stderr
