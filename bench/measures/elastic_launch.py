"""From `kit.launch` to the last started container: thirty elastic workers, compared with a Job of thirty.

The kit creates the pods of elastic workers, the Job controller those of the Job. The pods sleep, so that
training does not slow down the start of others.

Bounded by starting pods: two cores, and the kubelet's requests.
"""

import time
from functools import partial
from typing import Any

import kitlib as kit
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, has_started, wait_gone
from kitlib.jobs.base import Job
from kitlib.k8s import names

WORKERS, QUICK_WORKERS = 30, 5
LIMIT = Limit(1.1)  # the rendezvous store is also a pod


def measure(lab: Lab) -> list[Result]:
    """Launch both, alternating."""
    lab.clear(KUBELET, KWOK)
    count = QUICK_WORKERS if lab.quick else WORKERS
    elastic = kit.TorchElastic("trainers/digits_elastic.py", nodes=count)
    fixed = kit.IndexedJob("trainers/digits_ddp.py", nodes=count)
    jobs = {
        "elastic": elastic.patch({"template": _sleeping("worker")}),
        "job": fixed.patch({"spec": {"template": _sleeping("pytorch")}}),
    }
    _launch(lab, jobs["job"], count)  # the first start waits until the forkserver has imported torch
    samples = alternate({side: partial(_launch, lab, job, count) for side, job in jobs.items()}, lab.rounds)
    return [
        Result(
            what=f"{count} elastic workers launched → all started",
            unit="s",
            ours=tuple(samples["elastic"]),
            peer=f"a Job of {count}",
            theirs=tuple(samples["job"]),
            limit=LIMIT,
        )
    ]


def _sleeping(container: str) -> dict[str, Any]:
    """Return a patch that makes a container sleep."""
    sleeper = {"name": container, "command": ["sleep", "1000"], "args": None}
    return {"spec": {"terminationGracePeriodSeconds": 0, "containers": [sleeper]}}


def _launch(lab: Lab, job: Job, count: int) -> float:
    lab.report(f"launching {count} workers, {type(job).__name__}")
    kube = lab.ours.kube
    started: set[str] = set()
    with Watch(kube, "Pod") as watch:
        start = time.monotonic()
        run = kit.launch(job, cluster=lab.ours)

        def all_started(kind: str, pod: dict[str, Any]) -> bool:
            if pod["spec"]["containers"][0]["name"] != "store" and has_started(pod):
                started.add(pod["metadata"]["uid"])
            return len(started) == count

        end, _ = watch.until(all_started, what=f"{count} workers started")
    run.delete()
    wait_gone(kube, labels=f"{names.RUN}={run.name}")
    return end - start
