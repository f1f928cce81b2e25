"""From a pod's creation to its started container, as reported by a watch, one pod at a time.

Measured from the request that creates the pod to the arrival of the event, which includes the API server, the
scheduler and this client. Each pod is deleted before the next is created, and only the measured side's
cluster exists. The kubelets' series have 20 pods, whose p99 is the slowest, because each takes seconds to be
deleted.

Bounded by Python and the API server: the request for the token (8 ms, during which the sandbox is created),
the helper process that becomes the container (5 ms of CPU: a third copies 660 pages of the forked memory, a
fifth executes the command), and the patch of the status.
"""

import time
from functools import partial

from bench import objects
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate, percentile
from bench.watching import Watch, has_started
from kitlib.k8s.client import Kube

PODS, QUICK_PODS = 100, 20
MILLISECONDS = {50: 30, 99: 55}  # by percentile
SHARE = Limit(0.1)


def measure(lab: Lab) -> list[Result]:
    """Start and delete pods, in a series on each side."""
    count = QUICK_PODS if lab.quick else PODS
    sides = {
        side: partial(_series_alone, lab, side, QUICK_PODS if side == KUBELET else count)
        for side in lab.sides
    }
    samples = alternate(sides, lab.rounds)
    return [
        line
        for share, limit_ms in MILLISECONDS.items()
        for line in lab.compare(
            {side: [percentile(times, share) for times in runs] for side, runs in samples.items()},
            what=f"pod created → its container started, p{share} of {count} one at a time",
            unit="ms",
            limits={KUBELET: SHARE, KWOK: Limit(limit_ms, of="value", unit="ms")},
            details=dict(samples) if share == 99 else {},
        )
    ]


def _series_alone(lab: Lab, side: str, count: int) -> list[float]:
    kube = lab.alone(side).kube
    lab.report(f"starting pods one at a time, {side}")
    series(kube, 5)  # connections, caches
    return series(kube, count)


def series(kube: Kube, count: int, *, image: str = "") -> list[float]:
    """Return the milliseconds that each of ``count`` pods took, one after the other.

    Args:
        image: In place of the manifest's, with its own command.
    """
    with Watch(kube, "Pod") as watch:
        return [_start_seconds(kube, watch, f"sleeper-{number}", image) for number in range(count)]


def _start_seconds(kube: Kube, watch: Watch, name: str, image: str) -> float:
    """Return the milliseconds that one pod took."""
    watch.refresh()
    pod = objects.read("sleeper", metadata={"name": name})
    if image:
        pod["spec"]["containers"] = [{"name": "main", "image": image, "imagePullPolicy": "IfNotPresent"}]
    start = time.monotonic()
    uid = kube.create(pod)["metadata"]["uid"]
    started, _ = watch.until(
        lambda kind, pod: pod["metadata"]["uid"] == uid and has_started(pod), what=f"{name} started"
    )
    kube.delete("Pod", name)
    watch.until(lambda kind, pod: kind == "DELETED" and pod["metadata"]["uid"] == uid, what=f"{name} gone")
    return (started - start) * 1000
