"""From nothing to the first pod that runs: `create_cluster` here, `kwokctl create cluster --wait` there.

Both sides start the same release of Kubernetes from the cache, kwokctl upstream's programs and we our own
build of them, and end when a watch has seen the pod Running on one of four nodes. Ours is a process; kwok's
is pretended. Ours is the cluster that a user gets: its forkserver loads meanwhile.

Bounded by the API server: 1.4 of 2.7 s until it serves, most of it one core's work (OpenAPI documents,
garbage collection), then 170 requests for roles one after the other, and the controllers' caches.
"""

import time

from bench import objects
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, wait_account
from kitlib.k8s.client import Kube

LIMIT = Limit(0.6)
Sample = tuple[float, float]  # seconds until the command came back, and until the pod ran


def measure(lab: Lab) -> list[Result]:
    """Create and delete clusters, in turns."""
    lab.clear()
    sides = {"ours": lambda: _ours(lab)}
    if lab.kwok is not None:
        sides["theirs"] = lambda: _theirs(lab)
    for side in sides.values():  # the first one finds cold caches, and may bake what later ones use
        side()
    samples = alternate(sides, lab.rounds)
    theirs = samples.get("theirs", [])
    return [
        Result(
            what="create a cluster of 4 nodes → first pod Running",
            unit="s",
            ours=tuple(total for _, total in samples["ours"]),
            peer="kwokctl, a fake pod",
            theirs=tuple(total for _, total in theirs),
            absent=lab.kwok_absent,
            limit=LIMIT,
            details={
                "ours: command came back": [created for created, _ in samples["ours"]],
                "kwokctl: command came back": [created for created, _ in theirs],
            },
        )
    ]


def _ours(lab: Lab) -> Sample:
    lab.report("creating one of our clusters")
    began = time.monotonic()
    with lab.cluster() as cluster:
        created = time.monotonic()
        return created - began, _first_pod(cluster.kube) - began


def _theirs(lab: Lab) -> Sample:
    lab.report("creating one of kwok's clusters")
    began = time.monotonic()
    with lab.kwok_cluster() as cluster:
        created = time.monotonic()
        cluster.add_nodes()
        return created - began, _first_pod(cluster.kube) - began


def _first_pod(kube: Kube) -> float:
    """Create a pod, as soon as the cluster takes it, and return when it was seen Running."""
    wait_account(kube)  # `kwokctl --wait` comes back before it is there
    with Watch(kube, "Pod") as watch:
        kube.create(objects.read("sleeper"))
        running, _ = watch.until(
            lambda kind, pod: pod["status"].get("phase") == "Running", what="the first pod Running"
        )
    return running
