"""Time a training run by the trainer's events, in a cluster and with a bare ``torchrun``.

Both run the same file with the same flags and number of threads, and their events have times of this
machine's clock, so that they can be compared. The measures define the comparisons.
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
        submitted: Just before its submission.
        first_step: The end of the first step of any rank.
        ended: The last rank's end of training, before its process ended.
        finished: When it was observed to have finished.
        threads: The number of threads that each rank reported.
        warm: The number of pods started by the forkserver.
        accuracy: The reported accuracy, or None.
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
        MeasureFailed: A rank did not finish.
    """
    events = list(metrics.parse(lines))
    first = [event.time for event in events if event.event == "step"]
    last = [event.time for event in events if event.event == "end"]
    if len(last) != ranks or not first:
        raise MeasureFailed(f"{len(last)} of {ranks} ranks finished")
    threads = tuple(int(event.fields.get("threads", 0)) for event in events if event.event == "start")
    reached = [float(event.fields["accuracy"]) for event in events if event.event == "eval"]
    accuracy = reached[-1] if reached else None
    return Times(submitted, min(first), max(last), finished, threads, warm, accuracy)


def bare(ranks: int, *, flags: Mapping[str, object], folder: Path) -> Times:
    """Train with ``torchrun --nproc-per-node RANKS`` on this machine.

    Args:
        ranks: The number of processes.
        flags: The trainer's.
        folder: The folder for its output.

    Raises:
        MeasureFailed: It failed; the error has the end of its output.
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
        cluster: The cluster.
        ranks: The number of pods.
        flags: The trainer's.
        patch: A patch of the Job, such as `COLD` or `as_python`.
        keep: Do not delete the run, as the cluster is deleted anyway.
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

    torchrun starts a process for each rank, even with one rank per pod; this saves that process. The Job sets
    the variables that torchrun would set.
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
