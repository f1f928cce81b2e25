"""A Job of one pod that runs ``true``, from its creation to its condition Complete: what a short run costs.

Our Job controller looks 50 ms after a pod has succeeded (docs/building.md), upstream's within a second.
"""

from bench.lab import KUBELET, KWOK, Lab
from bench.measures.many_pods import job_seconds
from bench.results import Limit, Result
from bench.sampling import alternate, percentile

JOBS, QUICK_JOBS = 12, 4
SECONDS = Limit(0.25, of="value", unit="s")


def measure(lab: Lab) -> list[Result]:
    """Run one Job after the other, a series on each side in turns."""
    count = QUICK_JOBS if lab.quick else JOBS
    sides = {
        side: lambda kube=kube: percentile([job_seconds(lab, kube, 1) for _ in range(count)], 50)
        for side, kube in lab.kubes().items()
        if side != KWOK
    }
    what = f"Job of one `true` → Complete, median of {count}"
    return lab.compare(alternate(sides, lab.rounds), what=what, unit="s", limits={KUBELET: SECONDS})
