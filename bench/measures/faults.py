"""Five faults of a training in pods: the longest pause that each costs, by four ways to be elastic.

Two workers of the digits on two of four nodes, a step each tenth of a second, a checkpoint each ten. One
worker is killed, or stopped (SIGSTOP); its node has 1 Mbit/s, is cut off from the network, or loses power.
The pause is the longest time without a step of any worker, from the fault until training has gone on for a
while; a way is given up after a minute without a step, or when its run has failed.

The elastic launcher, a stock ``torchrun`` with a rendezvous and restarts, and a TrainJob of Kubeflow Trainer
run the same program with the same checkpoints; torchft has its own program, without checkpoints. Everything
else is as it comes: torchft's collectives wait for 5 s, stock torchrun's for five minutes.

Bounded by how a loss is noticed: by a connection that breaks, at once; by silence, after a timeout.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import kitlib as kit
from bench import torchft
from bench.errors import PeerAbsent
from bench.lab import Lab
from bench.results import Result
from bench.sampling import alternate
from kitlib.clusters import Cluster
from kitlib.errors import KitError
from kitlib.jobs.base import Job, JobArguments

TRAINER, PACE = "trainers/digits_elastic.py", 0.1
FLAGS = {"epochs": 100_000, "step_seconds": PACE, "log_every": 1, "checkpoint_every": 10}
TIMEOUT, SETTLE, POLL = 60.0, 15.0, 1.0  # seconds: without a step, after the fault, between polls
READY_SECONDS, STEPS_BEFORE = 180, 20
ROUNDS = 1  # twenty runs, of up to a minute and more
Fault = Callable[[Cluster, kit.Run, str], AbstractContextManager[None]]  # the node is that of rank 1
OURS, TORCHRUN, TORCHFT, TRAIN_JOB = "ours", "torchrun in pods", "torchft in pods", "TrainJob"


def measure(lab: Lab) -> list[Result]:
    """Do every fault to every kind of run, in turns."""
    lab.clear()
    absent = _install(lab)
    volume = lab.ours.create_volume("faults")
    results = []
    for fault, strike in FAULTS.items():
        lab.report(fault)
        sides = {
            kind: lambda kind=kind, strike=strike: _pause(lab, kind, strike)
            for kind in (OURS, TORCHRUN, TORCHFT, TRAIN_JOB)
            if kind not in absent
        }
        samples = alternate(sides, min(lab.rounds, ROUNDS))
        results += [
            Result(
                what=f"{fault} → longest pause of the training",
                unit="s",
                ours=tuple(samples[OURS]),
                peer=peer,
                theirs=tuple(samples.get(peer, ())),
                absent=absent.get(peer, ""),
                timeout=TIMEOUT,
            )
            for peer in (TORCHRUN, TORCHFT, TRAIN_JOB)
        ]
    volume.delete()
    return results


def _install(lab: Lab) -> dict[str, str]:
    """Install what the peers need; return why one is absent."""
    absent = {}
    try:
        sys.path.append(str(torchft.install(lab.folder)))
    except PeerAbsent as reason:
        absent[TORCHFT] = str(reason)
    try:
        kit.install("trainer", cluster=lab.ours)
    except KitError as reason:
        absent[TRAIN_JOB] = reason.what
    return absent


def _job(kind: str, cluster: Cluster) -> Job:
    """Describe the run of a kind; each has checkpoints of its own."""
    name = f"faults-{time.time_ns() // 1_000_000_000}"
    flags: dict[str, object] = FLAGS | {"checkpoint_dir": f"/data/{name}"}
    if kind == TORCHFT:
        flags = {"steps": 100_000, "step-seconds": PACE}
    shape: JobArguments = {"name": name, "args": flags, "volumes": {"/data": cluster.volume("faults")}}
    if kind == TORCHFT:
        return kit.TorchFT(torchft.TRAINER, nodes=2, **shape)
    if kind == TRAIN_JOB:
        return kit.TrainJob(TRAINER, nodes=2, **shape)
    job = kit.TorchElastic(TRAINER, nodes=2, min_nodes=1, max_nodes=2, **shape)
    if kind == OURS:
        return job
    template = next(item for item in job.objects if item["kind"] == "PodTemplate")["template"]
    (container,) = template["spec"]["containers"]
    program = next(word for word in container["command"] if word.endswith(Path(TRAINER).name))
    stock = {"name": container["name"], "command": ["torchrun", program]}
    return job.patch({"template": {"spec": {"containers": [stock]}}})


def _trains(seen: Any) -> bool:
    return bool(seen.step >= STEPS_BEFORE)


def _pause(lab: Lab, kind: str, strike: Fault) -> float:
    """Launch a run, do a fault to its worker of rank 1, and return the longest pause in seconds."""
    cluster = lab.ours
    run = kit.launch(_job(kind, cluster), cluster=cluster)
    try:
        run.wait(until=_trains, timeout=READY_SECONDS)
        node = next(pod["node"] for pod in run.pods() if str(pod["rank"]) == "1")
        struck = time.time()
        with strike(cluster, run, node):
            seconds = _longest_pause(run, since=struck)
    finally:
        run.delete()
    lab.report(f"{kind}: {seconds:.1f} s")
    return seconds


def _longest_pause(run: kit.Run, *, since: float) -> float:
    """Watch the steps until training has gone on; at most TIMEOUT seconds without one."""
    while True:
        now = time.time()
        steps = run.metrics("step")
        times = sorted(steps.time[steps.time >= since - 10 * PACE])
        pauses = [after - before for before, after in zip(times, times[1:], strict=False) if after > since]
        silent = now - max(since, times[-1] if times else since)
        if silent >= TIMEOUT or run.status.phase == "Failed":
            return TIMEOUT
        if now - since >= SETTLE and silent < 2 * POLL:
            return max(pauses)
        time.sleep(POLL)


@contextmanager
def _kill(cluster: Cluster, run: kit.Run, node: str) -> Iterator[None]:
    run.kill(rank=1)
    yield


@contextmanager
def _hang(cluster: Cluster, run: kit.Run, node: str) -> Iterator[None]:
    run.pause(rank=1)
    yield


@contextmanager
def _slow_link(cluster: Cluster, run: kit.Run, node: str) -> Iterator[None]:
    cluster.link(node=node, bandwidth="1Mbit")
    yield
    cluster.unlink(node=node)


@contextmanager
def _partition(cluster: Cluster, run: kit.Run, node: str) -> Iterator[None]:
    cluster.isolate(node)
    yield
    cluster.reconnect(node)


@contextmanager
def _node_lost(cluster: Cluster, run: kit.Run, node: str) -> Iterator[None]:
    cluster.stop_node(node)
    yield
    cluster.start_node(node)


FAULTS: Mapping[str, Fault] = {
    "SIGKILL of 1 of 2 workers": _kill,
    "SIGSTOP of 1 of 2 workers": _hang,
    "1 Mbit/s to a node": _slow_link,
    "a node cut off": _partition,
    "a node without power": _node_lost,
}
