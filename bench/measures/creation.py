"""From creation to the first running pod: four nodes of this kit, of real kubelets, and of kwok.

All sides start the same release of Kubernetes from the cache, the kit its own build of it, and end when a
watch reports a pod as Running on one of four nodes. Our pod is a process, kwok's is simulated, the kubelets'
is a container of runc. The kubelets' time starts when their namespaces and images exist, without what kind
adds: a container for each node, kubeadm, CoreDNS. Our cluster is created as by a user, and its forkserver
loads in the background. The first job, of the digits, is launched when the first pod runs.

Bounded by the API server: half a second of CPU until it serves, mostly on one core, and as much again for
the first lists and watches of the nodes, the scheduler and the controllers.
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
Sample = tuple[float, float]  # seconds until the first pod ran, and until the first job finished


def measure(lab: Lab) -> list[Result]:
    """Create and delete clusters, alternating between sides."""
    lab.clear()
    sides = {"ours": lambda: _local(lab)}
    if lab.has(KUBELET):
        sides[KUBELET] = lambda: _kubelets(lab)
    if lab.has(KWOK):
        sides[KWOK] = lambda: _kwok(lab)
    for side in sides.values():  # the first one fills caches that later ones use
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


def _local(lab: Lab) -> Sample:
    lab.report("creating one of our clusters")
    start = time.monotonic()
    with lab.cluster() as cluster:
        return _first_pod(cluster.kube) - start, _first_job(cluster) - start


def _kubelets(lab: Lab) -> Sample:
    lab.report("creating a cluster of real kubelets")
    with lab.kubelet_cluster() as peer:
        start = time.monotonic()
        return _first_pod(peer.start().kube) - start, _first_job(peer.cluster) - start


def _kwok(lab: Lab) -> Sample:
    lab.report("creating one of kwok's clusters")
    start = time.monotonic()
    with lab.kwok_cluster() as peer:
        return _first_pod(peer.add_nodes().kube) - start, math.nan


def _first_job(cluster: Cluster) -> float:
    """Train with one pod per node; return the time when the run succeeded."""
    training.in_cluster(cluster, RANKS, flags=FLAGS, patch=None, keep=True)
    return time.monotonic()


def _first_pod(kube: Kube) -> float:
    """Create a pod as soon as the cluster accepts it; return the time when it is Running."""
    wait_account(kube)  # peers return before it exists
    with Watch(kube, "Pod") as watch:
        kube.create(objects.read("sleeper"))
        running, _ = watch.until(
            lambda kind, pod: pod["status"].get("phase") == "Running", what="the first pod Running"
        )
    return running
