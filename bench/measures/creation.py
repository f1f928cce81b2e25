"""From creation to the first running pod: four nodes of this kit, of real kubelets, and of kwok.

All sides start the same release of Kubernetes from the cache, we our own build of it, and end when a watch
has seen the pod Running on one of four nodes. Ours is a process, and kwok's is pretended; the kubelets' is a
container of runc's, and their clock begins with their namespaces made and their images in place: what kind
adds (a container for each node, kubeadm, CoreDNS) is not in it. Ours is the cluster that a user gets: its
forkserver loads meanwhile. The first job, of the digits, is launched when the first pod runs.

Bounded by the API server: 1.4 of 2.7 s until it serves, most of it one core's work (OpenAPI documents,
garbage collection), then 170 requests for roles one after the other, and the controllers' caches.
"""

import math
import time

from bench import objects, training
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, wait_account
from kitlib.clusters import Cluster
from kitlib.k8s.client import Kube

LIMITS = {KUBELET: Limit(0.2), KWOK: None}
RANKS, FLAGS = 4, {"epochs": 1}
Sample = tuple[float, float]  # seconds until the first pod ran, and until a first job had trained


def measure(lab: Lab) -> list[Result]:
    """Create and delete clusters, alternating between sides."""
    lab.clear()
    sides = {"ours": lambda: _ours(lab)}
    if lab.has(KUBELET):
        sides[KUBELET] = lambda: _kubelets(lab)
    if lab.has(KWOK):
        sides[KWOK] = lambda: _kwok(lab)
    for side in sides.values():  # the first one finds cold caches, and may bake what later ones use
        side()
    samples = alternate(sides, lab.rounds)
    pods, lessons = ({side: [pair[n] for pair in pairs] for side, pairs in samples.items()} for n in (0, 1))
    cluster = "create a cluster of 4 nodes → "
    return [
        *lab.compare(pods, what=f"{cluster}first pod Running", unit="s", limits=LIMITS),
        *lab.compare(
            lessons, what=f"{cluster}first job of {RANKS} pods has trained", unit="s", limits={KUBELET: None}
        ),
    ]


def _ours(lab: Lab) -> Sample:
    lab.report("creating one of our clusters")
    began = time.monotonic()
    with lab.cluster() as cluster:
        return _first_pod(cluster.kube) - began, _first_job(cluster) - began


def _kubelets(lab: Lab) -> Sample:
    lab.report("creating a cluster of real kubelets")
    with lab.kubelet_cluster() as peer:
        began = time.monotonic()
        return _first_pod(peer.start().kube) - began, _first_job(peer.cluster) - began


def _kwok(lab: Lab) -> Sample:
    lab.report("creating one of kwok's clusters")
    began = time.monotonic()
    with lab.kwok_cluster() as peer:
        return _first_pod(peer.add_nodes().kube) - began, math.nan


def _first_job(cluster: Cluster) -> float:
    """Train with one pod per node; return the time when the run succeeded."""
    training.in_cluster(cluster, RANKS, flags=FLAGS, patch=None, keep=True)
    return time.monotonic()


def _first_pod(kube: Kube) -> float:
    """Create a pod as soon as the cluster accepts it; return the time when it is Running."""
    wait_account(kube)  # peers come back before it is there
    with Watch(kube, "Pod") as watch:
        kube.create(objects.read("sleeper"))
        running, _ = watch.until(
            lambda kind, pod: pod["status"].get("phase") == "Running", what="the first pod Running"
        )
    return running
