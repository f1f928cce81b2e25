"""From a pod's creation to its started container while twenty others run: ``pod_start`` in company.

The others sleep: looked at is what their number costs, in interfaces, mounts and watched objects.
"""

from functools import partial
from typing import Any

from bench import objects
from bench.lab import KUBELET, KWOK, Lab
from bench.measures.pod_start import QUICK_PODS, series
from bench.results import Limit, Result
from bench.sampling import alternate, percentile
from bench.watching import Watch, has_started, wait_gone
from kitlib.k8s.client import Kube

OTHERS = 20
PODS = 100
MILLISECONDS = 120
LABEL = {"bench": "company"}


def measure(lab: Lab) -> list[Result]:
    """Start and delete pods beside twenty others, a series on each side in turns."""
    count = QUICK_PODS if lab.quick else PODS
    kubes = {side: kube for side, kube in lab.kubes().items() if side != KUBELET}
    try:
        for side, kube in kubes.items():
            lab.report(f"starting pods beside {OTHERS} others, {side}")
            _company(kube)
            series(kube, 5)  # connections, caches
        samples = alternate({side: partial(series, kube, count) for side, kube in kubes.items()}, lab.rounds)
    finally:
        for kube in kubes.values():
            for number in range(OTHERS):
                kube.delete("Pod", f"company-{number}")
            wait_gone(kube, labels="bench=company")
    return lab.compare(
        {side: [percentile(times, 99) for times in taken] for side, taken in samples.items()},
        what=f"pod created → its container started, p99 of {count} with {OTHERS} pods running",
        unit="ms",
        limits={KWOK: Limit(MILLISECONDS, of="value", unit="ms")},
        details=dict(samples),
    )


def _company(kube: Kube) -> None:
    """Start the others, and wait until all run."""
    waiting = {f"company-{number}" for number in range(OTHERS)}
    with Watch(kube, "Pod") as watch:
        for name in sorted(waiting):
            kube.create(objects.read("sleeper", metadata={"name": name, "labels": LABEL}))

        def all_run(kind: str, pod: dict[str, Any]) -> bool:
            if has_started(pod):
                waiting.discard(pod["metadata"]["name"])
            return not waiting

        watch.until(all_run, what=f"{OTHERS} pods running")
