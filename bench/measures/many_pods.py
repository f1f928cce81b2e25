"""A Job of two hundred pods that run ``true``, from its creation to its condition Complete.

kwok runs without rate limits, and its simulated pods end as soon as they run. The kubelets' side has
Kubernetes' own limits, as kind has: 20 requests per second for controllers, 50 for kubelets. Our Job
controller reacts 50 ms after a pod has succeeded (docs/building.md), upstream's within a second.

Bounded by two cores: 12 s of CPU for 200 pods, a third of it in the API server, a sixth each in the kubelet
and in the processes that become containers. Each pod takes seven API requests.
"""

import time
from functools import partial

from bench import objects
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, is_complete, wait_gone
from kitlib.k8s.client import Kube

LIMITS = {KUBELET: Limit(0.2), KWOK: Limit(1.5)}
PODS, QUICK_PODS = 200, 50


def measure(lab: Lab) -> list[Result]:
    """Run the Job, alternating between sides."""
    count = QUICK_PODS if lab.quick else PODS
    sides = {side: partial(_seconds_alone, lab, side, count) for side in lab.sides}
    what = f"Job of {count} pods → Complete"
    return lab.compare(alternate(sides, lab.rounds), what=what, unit="s", limits=LIMITS)


def _seconds_alone(lab: Lab, side: str, count: int) -> float:
    kube = lab.alone(side).kube
    job_seconds(lab, kube, 1)  # connections, caches
    return job_seconds(lab, kube, count)


def job_seconds(lab: Lab, kube: Kube, count: int) -> float:
    """Return the seconds that one Job took."""
    lab.report(f"a Job of {count} pods, {kube.cluster}")
    job = objects.read("many-pods", spec={"completions": count, "parallelism": count})
    name = job["metadata"]["name"]
    with Watch(kube, "Job") as watch:
        start = time.monotonic()
        kube.create(job)
        complete, _ = watch.until(
            lambda kind, job: job["metadata"]["name"] == name and is_complete(job), what="the Job complete"
        )
    kube.delete("Job", name)
    wait_gone(kube, labels=f"batch.kubernetes.io/job-name={name}")
    return complete - start
