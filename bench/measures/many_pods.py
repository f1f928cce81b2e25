"""A Job of two hundred pods that run ``true``, from its creation to its condition Complete.

kwok's limits on requests are lifted, and its pods, being pretended, end as soon as they run. The Job
controller looks at its pods in batches of a second, on both sides.

Bounded by two cores: 12 s of CPU for 200 pods, a third of it in the API server, a sixth each in the kubelet
and in the processes that become containers. A pod costs it seven requests.
"""

import time

from bench import objects
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, is_complete, wait_gone
from kitlib.k8s.client import Kube

LIMIT = Limit(1.1)
PODS, QUICK_PODS = 200, 50


def measure(lab: Lab) -> list[Result]:
    """Run the Job on each side in turns."""
    count = QUICK_PODS if lab.quick else PODS
    sides = {"ours": lambda: _job(lab, lab.ours.kube, count)}
    if lab.theirs is not None:
        sides["theirs"] = lambda: _job(lab, lab.theirs.kube, count)
    samples = alternate(sides, lab.rounds)
    return [
        Result(
            what=f"Job of {count} pods → Complete",
            unit="s",
            ours=tuple(samples["ours"]),
            peer="kwok --disable-qps-limits, fake pods",
            theirs=tuple(samples.get("theirs", ())),
            absent=lab.kwok_absent,
            limit=LIMIT,
        )
    ]


def _job(lab: Lab, kube: Kube, count: int) -> float:
    """Return the seconds that one Job took."""
    lab.report(f"a Job of {count} pods, {kube.cluster}")
    job = objects.read("many-pods", spec={"completions": count, "parallelism": count})
    name = job["metadata"]["name"]
    with Watch(kube, "Job") as watch:
        began = time.monotonic()
        kube.create(job)
        complete, _ = watch.until(
            lambda kind, job: job["metadata"]["name"] == name and is_complete(job), what="the Job complete"
        )
    kube.delete("Job", name)
    wait_gone(kube, labels=f"batch.kubernetes.io/job-name={name}")
    return complete - began
