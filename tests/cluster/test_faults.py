"""Faults while two ranks train: what dies comes back, and the run neither ends nor loses a line for it.

The trainer needs no torch: its ranks exchange a number each step, so that each waits for the other as the
ranks of a gradient's all-reduce do.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

import kitlib as kit
from kitlib.errors import KitError

pytestmark = pytest.mark.cluster

STEPS = 45
TRAINER = """
import os, socket, sys, time
rank, steps = int(os.environ["NODE_RANK"]), int(sys.argv[1])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    other, _ = socket.create_server(("", address[1])).accept()
else:
    while True:
        try:
            other = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.1)
stream = other.makefile("rw")
for step in range(steps):
    print(step, file=stream, flush=True)
    assert int(stream.readline()) == step
    print(step, flush=True)
    time.sleep(0.1)
"""
COMPONENTS = ("agent", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


@pytest.fixture(scope="module")
def victim(state_home):
    """A cluster whose processes are killed."""
    name = f"victim-{secrets.token_hex(3)}"
    try:
        yield kit.create_cluster("local", name=name, nodes=2, warm=False)
    finally:
        kit.clusters.LocalCluster(name).delete()


@pytest.fixture
def train(write_trainer):
    """Launch two ranks; what is left of them is deleted after the test."""
    runs = []

    def launch(cluster, *, steps=STEPS):
        path = write_trainer(TRAINER)
        command = ["python", f"/trainyard/trainer/{path.name}", str(steps)]
        spec = {"containers": [{"name": "pytorch", "command": command}], "terminationGracePeriodSeconds": 1}
        job = kit.IndexedJob(path, nodes=2).patch({"spec": {"template": {"spec": spec}}})
        runs.append(kit.launch(job, cluster=cluster))
        return runs[-1]

    yield launch
    for run in runs:
        with contextlib.suppress(KitError):
            run.delete()


def component(cluster, name):
    """Return the process of a component, by the file that it is told about."""
    word = "localkube.node" if name == "agent" else name
    mine = f"/{cluster.name}/"
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if word in words[:3] and mine in " ".join(words):
            return process
    return None


def containers(cluster, run):
    """Return the containers of a run by rank, as the host sees them."""
    supervisor = psutil.Process(cluster.status["processes"]["supervisor"]["pid"])
    found = {}
    for process in supervisor.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "/trainyard/trainer/trainer.py" in process.cmdline() and process.environ():
                found[int(process.environ()["NODE_RANK"])] = process
    return found


def at_step(run, step):
    """Return the lines of rank 0 as they come, from the one of a step on."""
    lines = iter(run.logs(rank=0, follow=True))
    for line in lines:
        if line == str(step):
            return lines
    raise AssertionError(f"rank 0 ended before step {step}: {run.status}\n{run.logs()}")


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_run_outlives_the_death_of(victim, train, name):
    run = train(victim)
    lines = at_step(run, 5)
    before = component(victim, name)
    before.kill()
    assert list(lines) == [str(number) for number in range(6, STEPS)]
    assert run.wait(timeout=60).phase == "Succeeded"
    assert [each["restarts"] for each in run.pods()] == [0, 0]
    assert run.logs(rank=1).splitlines() == [str(number) for number in range(STEPS)]
    assert component(victim, name).pid != before.pid


def test_a_killed_container_fails_the_run_and_names_its_rank(victim, train):
    run = train(victim)
    at_step(run, 3)
    containers(victim, run)[1].kill()
    with pytest.raises(kit.RunFailed) as failed:
        run.wait(timeout=60)
    assert failed.value.rank is not None
    assert {each["status"] for each in run.pods()} <= {"Error", "Failed", "Completed"}


def test_a_stopped_rank_holds_the_others_and_the_run_goes_on_with_it(victim, train):
    run = train(victim)
    lines = at_step(run, 3)
    process = containers(victim, run)[1]
    process.suspend()
    held = int(run.logs(rank=0).splitlines()[-1])
    time.sleep(2)  # nothing to watch: that nothing happens is what is looked at
    assert int(run.logs(rank=0).splitlines()[-1]) <= held + 1
    assert {each["status"] for each in run.pods()} == {"Running"}
    process.resume()
    assert list(lines) == [str(number) for number in range(4, STEPS)]
    assert run.wait(timeout=60).phase == "Succeeded"


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
def writer(victim):
    writing = Writer(victim)
    writing.start()
    assert writing.first.wait(30)
    yield writing
    writing.stop()


def stored(cluster):
    return {each["metadata"]["name"] for each in cluster.kube.get_all("ConfigMap")}


def until(look):
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["etcd", "kube-apiserver"])
def test_nothing_that_was_acknowledged_is_lost_with(victim, writer, name):
    for _ in range(2):
        before = component(victim, name)
        seen = len(writer.acknowledged)
        before.kill()
        until(lambda seen=seen: len(writer.acknowledged) > seen + 20)
    writer.stop()
    assert len(writer.acknowledged) > 40
    assert set(writer.acknowledged) <= stored(victim)


def test_what_was_acknowledged_and_the_run_itself_outlast_the_supervisor(victim, train, writer):
    """Last of all: the cluster ends and is started again, by the same call that made it."""
    run = train(victim)
    at_step(run, 3)
    os.kill(victim.status["processes"]["supervisor"]["pid"], signal.SIGKILL)
    with pytest.raises(kit.errors.ClusterBroken, match="(?s)supervisor.*starts it again"):
        run.wait(timeout=60)
    writer.stop()
    again = kit.create_cluster("local", name=victim.name, nodes=2, warm=False)
    assert set(writer.acknowledged) <= stored(again)
    with pytest.raises(kit.RunFailed, match="ContainerStatusUnknown.*the cluster was stopped") as failed:
        again.run(run.name).wait(timeout=60)
    assert "launch" in failed.value.fix
    fresh = train(again, steps=5)
    assert fresh.wait(timeout=60).phase == "Succeeded"


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
    print("run:", run.wait(timeout=60).phase)
    print("output lost:", 0 < len(run.logs(rank=0).splitlines()) < 30)
    filler.unlink()
    write("after")
    names = {each["metadata"]["name"] for each in cluster.kube.get_all("ConfigMap")}
    print("kept:", {"before", "during", "after"} <= names)
    again = kit.launch(kit.IndexedJob(trainer, nodes=1).patch(
        {"spec": {"template": {"spec": {"containers": containers}}}}), cluster=cluster)
    print("again:", again.wait(timeout=60).phase)
"""
CHATTER = """
import time
for number in range(30):
    print(number, "x" * 10000, flush=True)
    time.sleep(0.1)
"""


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
        timeout=150,
        check=False,
    )
    wanted = [
        "full: No space left on device",
        "run: Succeeded",
        "output lost: True",
        "kept: True",
        "again: Succeeded",
    ]
    assert [line for line in done.stdout.splitlines() if ": " in line] == wanted, done.stdout + done.stderr
