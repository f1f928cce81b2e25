"""Five faults of a training run in pods: the longest pause with four elastic launchers.

Two workers train on the digits on two of four nodes, with a step every 0.1 s and a checkpoint every ten
steps. One worker is killed or stopped (SIGSTOP), or its node has a link of 1 Mbit/s, is isolated, or loses
power. The pause is the longest time without a step of any worker, from the fault until training has continued
for a while; a launcher is given up after a minute without a step, or when its run has failed. The steps
around the fault are stored for the picture in docs/elastic.md (``bench.timelines``). ``--quick`` only kills a
worker, with the first two launchers.

The elastic launcher, a stock ``torchrun`` with a rendezvous and restarts, and a TrainJob of Kubeflow Trainer
run the same program with the same checkpoints; torchft has its own program, without checkpoints. All other
settings are defaults: torchft's collectives time out after 5 s, those of a stock torchrun after five minutes.

Bounded by the detection of a loss: immediate if a connection breaks, otherwise after a timeout.
"""

import itertools
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
from bench.timelines import TIMEOUT, Timeline
from kitlib.clusters import Cluster
from kitlib.errors import KitError
from kitlib.jobs.base import Job, JobArguments

TRAINER, PACE = "trainers/digits_elastic.py", 0.1
FLAGS = {"epochs": 100_000, "step_seconds": PACE, "log_every": 1, "checkpoint_every": 10}
SETTLE, POLL = 15.0, 1.0  # seconds: after the fault, between polls
READY_SECONDS, STEPS_BEFORE = 180, 20
ROUNDS = 1  # twenty runs of about a minute
Fault = Callable[[Cluster, kit.Run, str], AbstractContextManager[None]]  # the node is that of rank 1
OURS, TORCHRUN, TORCHFT, TRAIN_JOB = "ours", "torchrun in pods", "torchft in pods", "TrainJob"
QUICK = (OURS, TORCHRUN)


def measure(lab: Lab) -> list[Result]:
    """Apply every fault to every kind of run, alternating."""
    lab.clear()
    absent = dict.fromkeys((TORCHFT, TRAIN_JOB), "omitted in a quick run") if lab.quick else _install(lab)
    volume = lab.ours.create_volume("faults")
    results = []
    for fault, strike in itertools.islice(FAULTS.items(), 1 if lab.quick else None):
        lab.report(fault)
        sides = {
            kind: lambda kind=kind, strike=strike: _strike(lab, kind, strike)
            for kind in (OURS, TORCHRUN, TORCHFT, TRAIN_JOB)
            if kind not in absent
        }
        samples = alternate(sides, min(lab.rounds, ROUNDS))
        results += [_result(fault, samples, peer, absent) for peer in (TORCHRUN, TORCHFT, TRAIN_JOB)]
    volume.delete()
    return results


def _result(
    fault: str, samples: Mapping[str, list[Timeline]], peer: str, absent: Mapping[str, str]
) -> Result:
    kinds = (OURS, peer) if peer == TORCHRUN else (peer,)  # ours once
    return Result(
        what=f"{fault} → longest pause of the training",
        unit="s",
        ours=tuple(timeline.seconds for timeline in samples[OURS]),
        peer=peer,
        theirs=tuple(timeline.seconds for timeline in samples.get(peer, ())),
        absent=absent.get(peer, ""),
        timeout=TIMEOUT,
        details={"timelines": {kind: samples[kind][-1].as_dict() for kind in kinds if kind in samples}},
    )


def _install(lab: Lab) -> dict[str, str]:
    """Install the peers' requirements; return the reason for absent ones."""
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
    """Return a job of a kind, with its own folder for checkpoints."""
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
    program = next(argument for argument in container["command"] if argument.endswith(Path(TRAINER).name))
    stock = {"name": container["name"], "command": ["torchrun", program]}
    return job.patch({"template": {"spec": {"containers": [stock]}}})


def _trains(state: Any) -> bool:
    return bool(state.step >= STEPS_BEFORE)


def _strike(lab: Lab, kind: str, strike: Fault) -> Timeline:
    """Launch a run, apply a fault to the worker of rank 1, and return the steps around it."""
    cluster = lab.ours
    run = kit.launch(_job(kind, cluster), cluster=cluster)
    try:
        run.wait(until=_trains, timeout=READY_SECONDS)
        node = next(pod["node"] for pod in run.pods() if str(pod["rank"]) == "1")
        struck = time.time()
        with strike(cluster, run, node):
            timeline = _watch(run, since=struck)
    finally:
        run.delete()
    lab.report(f"{kind}: {timeline.seconds:.1f} s")
    return timeline


def _watch(run: kit.Run, *, since: float) -> Timeline:
    """Watch the steps until training has continued; at most TIMEOUT seconds without one."""
    while True:
        now = time.time() - since
        steps = run.metrics("step")
        workers = tuple(tuple(sorted(rank_steps.time - since)) for _, rank_steps in steps.groupby("rank"))
        last = max([0.0, *(worker[-1] for worker in workers)])
        failed = run.status.phase == "Failed"
        given_up = failed or now - last >= TIMEOUT
        if given_up or (now >= SETTLE and now - last < 2 * POLL):
            return Timeline.around_fault(workers, failed=failed, given_up=given_up)
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
def _power_off(cluster: Cluster, run: kit.Run, node: str) -> Iterator[None]:
    cluster.stop_node(node)
    yield
    cluster.start_node(node)


FAULTS: Mapping[str, Fault] = {
    "SIGKILL of 1 of 2 workers": _kill,
    "SIGSTOP of 1 of 2 workers": _hang,
    "1 Mbit/s to a node": _slow_link,
    "a node cut off": _partition,
    "a node without power": _power_off,
}
