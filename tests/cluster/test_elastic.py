"""Runs whose workers come and go: what the kit's verbs do to the pods and processes of a run of plain pods.

The workers are a few lines without torch, so that each test takes seconds: they say of themselves what
elastic trainers say, and leave when they are told to. That training goes on is for the tests of the trainers.
"""

import contextlib
import time

import pytest

import kitlib as kit
from kitlib.errors import BadInput, KitError, RunNotFound

from ..patience import until

pytestmark = pytest.mark.cluster

# A first process that starts the worker again when it dies, and tells it to leave, as the launcher does.
WORKER = """
import json, os, signal, socket, sys, time

number = int(socket.gethostname().rsplit("-", 1)[1])

def emit(event, **fields):
    line = {"event": event, "time": time.time(), "rank": number, "world_size": 8, **fields}
    print(json.dumps(line), flush=True)

def leave(*_):
    emit("leave")
    sys.exit(0)

def work():
    signal.signal(signal.SIGTERM, leave)
    emit("rendezvous", round=1, pid=os.getpid(), host=socket.gethostname())
    step = 0
    while not os.path.exists("/workspace/end"):
        emit("step", step=step)
        step += 1
        time.sleep(0.1)
    emit("end")
    os._exit(0)

child = 0
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
while True:
    child = os.fork() or work()
    _, status = os.waitpid(child, 0)
    if status == 0:
        sys.exit(0)
"""


@pytest.fixture
def start(launch, write_trainer):
    """Launch workers, and wait until each has said who it is."""

    def begin(nodes=3, **job):
        path = write_trainer(WORKER)
        container = {"name": "worker", "command": ["python", f"/trainyard/trainer/{path.name}"]}
        elastic_job = kit.TorchElastic(path, nodes=nodes, **job)
        run = launch(elastic_job.patch({"template": {"spec": {"containers": [container]}}}))
        until(lambda: ranks_of(run, "rendezvous").nunique() == nodes, "the workers to begin")
        return run

    return begin


def ranks_of(run, event):
    """Return the ranks that have reported it, once for each time."""
    return run.metrics(event)["rank"]


def steps(run, rank):
    return int((ranks_of(run, "step") == rank).sum())


def end(run):
    for pod in run.pods():
        run.kube.execute(pod["pod"], ["touch", "/workspace/end"], container="worker")


def test_processes_are_killed_paused_and_resumed_and_any_kernel_knows_by_whom(start, local_cluster):
    run = start()
    until(lambda: steps(run, 2) > 0, "rank 2 to train")
    node = run.pods()[2]["node"]
    assert repr(run.kill(rank=2)) == f"{run.name}-2 (rank 2) on {node}: killed"
    until(lambda: (ranks_of(run, "rendezvous") == 2).sum() == 2, "rank 2 to come back")
    assert [pod["restarts"] for pod in run.pods()] == [0, 0, 0]

    run.pause(rank=1)
    for _ in range(2):  # what it had written before may be on its way to the log the first time
        stuck, rank_0 = steps(run, 1), steps(run, 0)
        until(lambda rank_0=rank_0: steps(run, 0) > rank_0 + 5, "the others to go on")
    assert steps(run, 1) == stuck
    elsewhere = local_cluster.run(run.name)
    with pytest.raises(BadInput, match="rank 0 is not paused"):
        elsewhere.resume(rank=0)
    assert "rank 1" in elsewhere.resume()
    until(lambda: steps(run, 1) > stuck, "rank 1 to go on")
    with pytest.raises(BadInput, match="no process is paused"):
        elsewhere.resume()
    with pytest.raises(BadInput, match="no process trains as rank 7") as wrong:
        run.kill(rank=7)
    assert "0, 1, 2" in wrong.value.fix
    done = [(event["reason"], event["object"]) for event in elsewhere.events()]
    expected = [("Killed", 2), ("Paused", 1), ("Resumed", 1)]
    assert [pair for pair in done if pair[0] in dict(expected)] == [
        (reason, f"Pod/{run.name}-{number}") for reason, number in expected
    ]
    end(run)
    assert run.wait(timeout=120).succeeded == 3
    run.delete()
    ours = f"get pods,services,configmaps,podtemplates,events -l trainyard/run={run.name}"
    assert "No resources found" in local_cluster.kubectl(ours)


def test_workers_come_and_leave_and_what_they_wrote_is_kept(start, local_cluster):
    run = start(nodes=2, max_nodes=3)
    with pytest.raises(BadInput, match="from 1 to 3"):
        run.scale(4)
    elsewhere = local_cluster.run(run.name)
    assert f"new: {run.name}-2" in elsewhere.scale(3)
    until(lambda: steps(run, 2) > 0, "the new worker to train")
    assert f"left: {run.name}-1, {run.name}-2" in run.scale(1)
    assert [pod["pod"] for pod in run.pods()] == [f"{run.name}-0"]
    assert sorted(ranks_of(run, "leave")) == [1, 2]
    assert '"leave"' in run.logs(rank=2)
    assert [event["message"] for event in elsewhere.events() if event["reason"] == "Scaled"] == [
        "from 2 to 3 workers",
        "from 3 to 1 workers",
    ]
    assert str(elsewhere.status) == "Running: 1 of 1 pods"
    end(run)
    run.wait(timeout=120)
    with pytest.raises(BadInput, match="the run has ended"):
        run.scale(2)
    run.delete()
    with pytest.raises(RunNotFound):
        run.scale(2)


def test_a_run_ends_well_though_a_worker_gave_up_and_fails_when_all_have(launch, write_trainer):
    source = """
        import socket, time
        number = int(socket.gethostname().rsplit("-", 1)[1])
        time.sleep(5 * number)
        if number < FAILING:
            raise ValueError(f"worker {number}")
    """
    runs = []
    for failing in (1, 2):
        path = write_trainer(source.replace("FAILING", str(failing)), f"trainer{failing}.py")
        container = {"name": "worker", "command": ["python", f"/trainyard/trainer/{path.name}"]}
        job = kit.TorchElastic(path, nodes=2)
        runs.append(launch(job.patch({"template": {"spec": {"containers": [container]}}})))
    status = runs[0].wait(timeout=120)
    assert (status.phase, status.failed) == ("Succeeded", 1)
    with pytest.raises(kit.RunFailed, match="worker 0") as failed:
        runs[1].wait(timeout=120)
    assert failed.value.rank == 0


def test_a_run_of_a_fixed_number_of_workers_cannot_be_scaled(launch, plain):
    run = launch(plain("import time; time.sleep(60)"))
    with pytest.raises(BadInput, match="has 2 workers, a fixed number"):
        run.scale(3)
    until(lambda: "Running" in str(run.status), "it to run")
    with pytest.raises(BadInput, match="no trainer has reported its rank yet"):
        run.kill(rank=0)


@pytest.fixture
def whole(local_cluster):
    """Bring the nodes back that a test has stopped or isolated."""
    yield
    for node in [node["node"] for node in local_cluster.nodes()]:
        for verb in (local_cluster.start_node, local_cluster.reconnect):
            with contextlib.suppress(KitError):
                verb(node)
    until(lambda: all(node["status"] == "Ready" for node in local_cluster.nodes()), "the nodes to be Ready")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.namespaces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rendezvous", ["c10d", "etcd"])
def test_training_goes_on_whatever_happens_to_workers_and_their_nodes(
    launch, local_cluster, whole, rendezvous
):
    flags = {"epochs": 1000, "step_seconds": 0.2, "log_every": 1, "limit": 640}
    run = launch(
        kit.TorchElastic(
            "trainers/digits_elastic.py", nodes=3, max_nodes=4, rendezvous=rendezvous, args=flags
        )
    )

    def world(size):
        return lambda: (
            len(steps := run.metrics("step")) > 0
            and steps["world_size"].iloc[-1] == size
            and steps["time"].iloc[-1] > run_since
        )

    run_since = 0.0
    until(world(3), "three to train")
    for act, size in (
        (lambda: run.kill(rank=1), 3),
        (lambda: run.pause(rank=1), 2),
        (lambda: run.resume(), 3),
        (lambda: run.scale(4), 4),
        (lambda: run.scale(2), 2),
    ):
        act()
        run_since = time.time() + 1
        until(world(size), f"{size} to train")

    # The node of a worker is isolated, with no store on it: the other goes on, and a new one joins it.
    places = {pod["pod"]: pod["node"] for pod in local_cluster.pods()}
    last = max(pod["pod"] for pod in run.pods())
    if places[last] == places[f"{run.name}-store"]:
        last = min(pod["pod"] for pod in run.pods())
    local_cluster.isolate(places[last])
    run_since = time.time() + 1
    until(world(1), "one to train on")
    until(lambda: "does not answer" in repr(run.pods()) or len(run.pods()) < 2, "the kit to name the node")
    assert str(run.status).startswith("Running")
    run.scale(2)
    run_since = time.time() + 1
    until(world(2), "another to take the place of the lost one")
    local_cluster.reconnect(places[last])
    counted = run.timeline().samples
    assert set(list(counted.values())[:-2]) == {640}, "no sample is lost, and none is used twice"
