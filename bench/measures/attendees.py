"""Thirty attendees launch a job of two pods each at the same time; measured until the last succeeds.

Each has a namespace, and launches with the kit in a separate thread. Measured is the time from the first
launch to the last success: 60 pods on two cores and four nodes, one epoch of the digits each. The kubelets
get the same jobs. The ideal is computed: thirty times the duration of a bare torchrun with two ranks on both
cores; the kit can be faster, because pods started by the forkserver need not import torch.

Bounded by two cores: without a forkserver each rank imports torch, and the rendezvous waits for both ranks.
"""

import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import kitlib as kit
from bench import training
from bench.lab import KUBELET, PEERS, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import wait_account, wait_gone
from kitlib.clusters import Cluster
from kitlib.clusters.existing import ExistingCluster
from kitlib.errors import KitError

ATTENDEES, QUICK_ATTENDEES = 30, 4
RANKS, FLAGS = 2, {"epochs": 1}
ROUNDS, SECONDS = 1, Limit(25, of="value", unit="s")  # rounds of minutes
RUN_SECONDS = 400
LABEL = "bench"
BARE = "bare"
SILENT = "its API server did not answer an attendee while the pods imported torch"


def measure(lab: Lab) -> list[Result]:
    """Launch all jobs, alternating between sides."""
    count = QUICK_ATTENDEES if lab.quick else ATTENDEES
    sides = {"ours": lambda: _ours(lab, count), BARE: lambda: _ideal(lab, count)}
    if lab.has(KUBELET):
        sides[KUBELET] = lambda: _if_it_answers(lab, count)
    samples = alternate(sides, min(lab.rounds, ROUNDS))
    theirs = [seconds for seconds in samples.get(KUBELET, ()) if not math.isnan(seconds)]
    what = f"{count} attendees launch 2 pods each at once → all have trained"
    return [
        Result(what, "s", tuple(samples["ours"]), peer, tuple(alternative), absent, limit)
        for peer, alternative, absent, limit in (
            (PEERS[KUBELET], theirs, lab.absent.get(KUBELET, "" if theirs else SILENT), SECONDS),
            (f"the ideal: {count} × a bare torchrun", samples[BARE], "", Limit(1.0)),
        )
    ]


def _ours(lab: Lab, count: int) -> float:
    cluster = lab.alone("ours")
    assert isinstance(cluster, Cluster)
    training.in_cluster(cluster, RANKS, flags=FLAGS, patch=None)  # the forkserver has loaded then
    return _train_all(lab, cluster, count)


def _ideal(lab: Lab, count: int) -> float:
    """Return the seconds of as many bare runs, one after the other."""
    lab.clear()
    runs = [training.bare(RANKS, flags=FLAGS, folder=lab.folder) for _ in range(lab.rounds)]
    return count * statistics.median(run.finished - run.submitted for run in runs)


def _if_it_answers(lab: Lab, count: int) -> float:
    """Return the seconds on real kubelets; NaN if an attendee saw an error."""
    cluster = lab.alone(KUBELET)
    assert isinstance(cluster, Cluster)
    try:
        return _train_all(lab, cluster, count)
    except KitError as error:
        lab.report(f"an attendee saw: {error.what}")
        lab.clear(KUBELET)
        return math.nan


def _train_all(lab: Lab, cluster: Cluster, count: int) -> float:
    lab.report(f"{count} attendees train at once, {cluster.name}")
    names = [f"attendee-{number:02}" for number in range(1, count + 1)]
    for name in names:
        metadata = {"name": name, "labels": {LABEL: "attendees"}}
        cluster.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        wait_account(cluster.kube.in_namespace(name))
    start = time.monotonic()
    try:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda name: _train(cluster, name), names))
        return time.monotonic() - start
    finally:
        for name in names:
            cluster.kube.delete("Namespace", name)
        # The next round creates them again, which has no effect on one that is being deleted.
        wait_gone(cluster.kube, "Namespace", labels=f"{LABEL}=attendees")


def _train(cluster: Cluster, namespace: str) -> None:
    """Launch a job as an attendee would, and wait until it has succeeded."""
    attendee_cluster = ExistingCluster(namespace, kubeconfig=cluster.kubeconfig, namespace=namespace)
    run = kit.launch(kit.IndexedJob(training.TRAINER, nodes=RANKS, args=FLAGS), cluster=attendee_cluster)
    run.wait(timeout=RUN_SECONDS)
