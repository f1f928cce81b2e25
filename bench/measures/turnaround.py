"""The time of short runs: a Job of one pod that runs ``true``, and four pods that train on the digits.

The Job is measured from its creation to its condition Complete: our Job controller reacts 50 ms after a pod
has succeeded (docs/building.md), upstream's within a second. The training is measured from `kit.launch` until
`Run.wait` returns, after a first run has warmed the cluster.
"""

from functools import partial

from bench import training
from bench.lab import KUBELET, KWOK, Lab
from bench.measures.many_pods import job_seconds
from bench.results import Limit, Result
from bench.sampling import alternate, percentile
from kitlib.clusters import Cluster

JOBS, QUICK_JOBS = 12, 4
RANKS, RUNS = 4, 3
SECONDS = Limit(0.25, of="value", unit="s")
SHARE, TRAINING = Limit(0.2), Limit(1.5, of="value", unit="s")


def measure(lab: Lab) -> list[Result]:
    """Run Jobs one after the other, in a series on each side."""
    count = QUICK_JOBS if lab.quick else JOBS
    sides = [side for side in lab.sides if side != KWOK]
    jobs = {side: partial(_job_seconds, lab, side, count) for side in sides}
    what = f"Job of one `true` → Complete, median of {count}"
    results = lab.compare(alternate(jobs, lab.rounds), what=what, unit="s", limits={KUBELET: SECONDS})
    samples = alternate({side: partial(_training_seconds, lab, side) for side in sides}, lab.rounds)
    what = f"launch → wait returns: the digits, an epoch, {RANKS} warm pods"
    return [
        *results,
        *lab.compare(samples, what=what, unit="s", limits={KUBELET: SHARE}),
        *lab.compare(
            {"ours": samples["ours"]}, what=f"{what}, in seconds", unit="s", limits={KUBELET: TRAINING}
        ),
    ]


def _job_seconds(lab: Lab, side: str, count: int) -> float:
    kube = lab.alone(side).kube
    return percentile([job_seconds(lab, kube, 1) for _ in range(count)], 50)


def _training_seconds(lab: Lab, side: str) -> float:
    """Train several times; the median of all but the first."""
    cluster = lab.alone(side)
    assert isinstance(cluster, Cluster), "kwok's pods do not train"
    lab.report("four pods that train")
    times = [training.in_cluster(cluster, RANKS, flags={"epochs": 1}, patch=None) for _ in range(RUNS + 1)]
    return percentile([run.finished - run.submitted for run in times[1:]], 50)
