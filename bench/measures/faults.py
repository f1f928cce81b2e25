"""Five faults of a training in pods: the longest pause that each costs, by four ways to be elastic.

Two workers of the digits on two of four nodes, a step each tenth of a second, a checkpoint each ten. One
worker is killed, or stopped (SIGSTOP); its node has 1 Mbit/s, is cut off from the network, or loses power.
The pause is the longest time without a step of any worker, from the fault until training has gone on for a
while; a way is given up after a minute without a step, or when its run has failed. The steps around the fault
are kept for the picture in docs/elastic.md (``bench.timelines``). ``--quick`` only kills a worker, in the
first two ways.

The elastic launcher, a stock ``torchrun`` with a rendezvous and restarts, and a TrainJob of Kubeflow Trainer
run the same program with the same checkpoints; torchft has its own program, without checkpoints. Everything
else is as it comes: torchft's collectives wait for 5 s, stock torchrun's for five minutes.

Bounded by how a loss is noticed: by a connection that breaks, at once; by silence, after a timeout.
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
ROUNDS = 1  # twenty runs, of up to a minute and more
Fault = Callable[[Cluster, kit.Run, str], AbstractContextManager[None]]  # the node is that of rank 1
OURS, TORCHRUN, TORCHFT, TRAIN_JOB = "ours", "torchrun in pods", "torchft in pods", "TrainJob"
QUICK = (OURS, TORCHRUN)


def measure(lab: Lab) -> list[Result]:
    """Do every fault to every kind of run, in turns."""
    lab.clear()
    absent = dict.fromkeys((TORCHFT, TRAIN_JOB), "a quick run leaves it out") if lab.quick else _install(lab)
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


def _strike(lab: Lab, kind: str, strike: Fault) -> Timeline:
    """Launch a run, do a fault to its worker of rank 1, and return the steps around it."""
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
    """Watch the steps until training has gone on; at most TIMEOUT seconds without one."""
    while True:
        now = time.time() - since
        steps = run.metrics("step")
        workers = tuple(tuple(sorted(own.time - since)) for _, own in steps.groupby("rank"))
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
