"""Time a training run by the trainer's events, in a cluster and with a bare ``torchrun``.

Both run the same file with the same flags and the same number of threads; both write their events where this
machine's clock stamps them, so the times compare. What is compared with what is for the measures.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kitlib as kit
from bench import torchrun
from bench.errors import MeasureFailed
from kitlib import config
from kitlib.clusters import Cluster
from kitlib.k8s import logs
from kitlib.k8s.client import Kube
from kitlib.metrics import events as metrics

TRAINER = "trainers/digits_ddp.py"
RUN_SECONDS = 600
COLD = {"spec": {"template": {"metadata": {"annotations": {"trainyard/warm-start": "false"}}}}}


@dataclass(frozen=True)
class Times:
    """The times of a run's submission and events, in seconds since 1970.

    Attributes:
        submitted: Just before it was asked for.
        first_step: The first rank's first step was done.
        ended: The last rank was done, before its process ended.
        finished: It was seen to be over.
        threads: How many threads each rank had, as the ranks have said.
        warm: How many pods were forked by the forkserver.
        accuracy: What it reached; None where it said nothing of it.
    """

    submitted: float
    first_step: float
    ended: float
    finished: float
    threads: tuple[int, ...]
    warm: int = 0
    accuracy: float | None = None

    @property
    def to_first_step(self) -> float:
        return self.first_step - self.submitted

    @property
    def training(self) -> float:
        return self.ended - self.first_step

    @property
    def total(self) -> float:
        return self.ended - self.submitted


def read(lines: Iterable[str], *, submitted: float, finished: float, ranks: int, warm: int = 0) -> Times:
    """Read the times in a run's output.

    Raises:
        MeasureFailed: A rank did not come to its end.
    """
    events = list(metrics.parse(lines))
    first = [event.time for event in events if event.event == "step"]
    last = [event.time for event in events if event.event == "end"]
    if len(last) != ranks or not first:
        raise MeasureFailed(f"{len(last)} of {ranks} ranks came to their end")
    threads = tuple(int(event.fields.get("threads", 0)) for event in events if event.event == "start")
    reached = [float(event.fields["accuracy"]) for event in events if event.event == "eval"]
    accuracy = reached[-1] if reached else None
    return Times(submitted, min(first), max(last), finished, threads, warm, accuracy)


def bare(ranks: int, *, flags: Mapping[str, object], folder: Path) -> Times:
    """Train with ``torchrun --nproc-per-node RANKS`` on this machine.

    Args:
        ranks: How many processes.
        flags: The trainer's.
        folder: Where its output is kept.

    Raises:
        MeasureFailed: It failed; the error has its last words.
    """
    submitted = time.time()
    lines = torchrun.run(config.find(TRAINER), folder=folder, ranks=ranks, flags=flags)
    finished = time.time()
    return read(lines, submitted=submitted, finished=finished, ranks=ranks)


def in_cluster(
    cluster: Cluster,
    ranks: int,
    *,
    flags: Mapping[str, object],
    patch: Mapping[str, Any] | None,
    keep: bool = False,
) -> Times:
    """Train with the kit's Indexed Job, one pod per rank; the run is deleted afterwards.

    Args:
        cluster: Where.
        ranks: How many pods.
        flags: The trainer's.
        patch: Changes of the Job, such as `COLD` or `as_python`.
        keep: Leave the run, where the cluster is deleted anyway.
    """
    job: kit.Job = kit.IndexedJob(TRAINER, nodes=ranks, args=flags)
    job = job.patch(patch) if patch else job
    submitted = time.time()
    run = kit.launch(job, cluster=cluster)
    try:
        run.wait(timeout=RUN_SECONDS)
        finished = time.time()
        pods = cluster.kube.get_all("Pod", labels=f"batch.kubernetes.io/job-name={run.name}")
        lines = [line.text for pod in pods for line in logs.read(cluster.kube, pod)]
        warm = _started_warm(cluster.kube, {pod["metadata"]["name"] for pod in pods})
        return read(lines, submitted=submitted, finished=finished, ranks=ranks, warm=warm)
    finally:
        if not keep:
            run.delete()


def as_python(ranks: int) -> dict[str, Any]:
    """Return the patch that makes pods run the trainer without torchrun.

    torchrun starts a process for each rank, also where there is one rank a pod; this saves it. What torchrun
    would have told the rank is told by the Job.
    """
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    container = {
        "name": "pytorch",
        "command": ["python", f"/trainyard/trainer/{Path(TRAINER).name}"],
        "env": [
            {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
            {"name": "WORLD_SIZE", "value": str(ranks)},
        ],
    }
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


def _started_warm(kube: Kube, pods: set[str]) -> int:
    events = kube.get_all("Event", fields="reason=Started")
    return len(
        {
            event["involvedObject"]["name"]
            for event in events
            if event["involvedObject"]["name"] in pods and "forkserver" in event.get("message", "")
        }
    )
