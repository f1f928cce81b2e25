"""Scheduling at scale: a thousand pretended nodes Ready, and ten thousand pods of a Deployment Running there.

kwok makes its nodes by its own ``kwokctl scale``, its limits lifted. The clock runs from the wish for nodes
to the last pod that is ready; memory is that of all processes then.

Bounded by the API server, the controllers and the scheduler, the same programs on both sides; which of them
was not profiled.
"""

import time

import psutil

from bench import objects
from bench.lab import KWOK, UNLIMITED, Lab
from bench.measures.idle import memory, processes_of
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, wait_account
from kitlib.clusters.machine import call
from kitlib.clusters.nodes import is_ready
from kitlib.k8s.client import Kube
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

LIMIT = Limit(1.0)
NODES, PODS = 1000, 10_000
QUICK_NODES, QUICK_PODS = 100, 1000
PATIENCE_SECONDS = 2400
Sample = tuple[float, float]  # seconds and megabytes
SELECTORS = {"ours": "trainyard/simulated", KWOK: "type=kwok"}


def measure(lab: Lab) -> list[Result]:
    """Fill clusters of each side in turns, each a new one."""
    nodes, pods = (QUICK_NODES, QUICK_PODS) if lab.quick else (NODES, PODS)
    lab.clear()
    sides = {"ours": lambda: _ours(lab, nodes, pods)}
    if lab.has(KWOK):
        sides[KWOK] = lambda: _theirs(lab, nodes, pods)
    samples = alternate(sides, lab.rounds)
    seconds, megabytes = (
        {side: [pair[n] for pair in pairs] for side, pairs in samples.items()} for n in (0, 1)
    )
    what, limits = f"{nodes} simulated nodes Ready + {pods} pods Running", {KWOK: LIMIT}
    return [
        *lab.compare(seconds, what=what, unit="s", limits=limits),
        *lab.compare(megabytes, what=f"{what}, memory (PSS)", unit="MB", limits=limits),
    ]


def _ours(lab: Lab, nodes: int, pods: int) -> Sample:
    lab.report(f"{nodes} simulated nodes and {pods} pods, ours")
    with lab.cluster(warm=False) as cluster:
        began = time.monotonic()
        call("simulate", cluster.name, str(nodes))
        _fill(cluster.kube, SELECTORS["ours"], nodes, pods)
        return time.monotonic() - began, memory(processes_of(cluster))


def _theirs(lab: Lab, nodes: int, pods: int) -> Sample:
    lab.report(f"{nodes} nodes and {pods} pods, kwok")
    with lab.kwok_cluster(*UNLIMITED) as peer:
        wait_account(peer.kube)
        began = time.monotonic()
        peer.scale_nodes(nodes)
        _fill(peer.kube, SELECTORS[KWOK], nodes, pods)
        return time.monotonic() - began, memory(psutil.Process(pid) for pid in peer.pids())


def _fill(kube: Kube, selector: str, nodes: int, pods: int) -> None:
    """Wait for the nodes, create the Deployment, and wait for its pods."""
    wait(
        watch_objects(kube, WatchSpec("Node", labels=selector)),
        until=lambda seen: sum(map(is_ready, seen["Node"].values())) == nodes,
        timeout=PATIENCE_SECONDS,
        what="the nodes to be Ready",
        about=f'cluster "{kube.cluster}"',
        resume="run the benchmark again",
        describe=lambda seen: f"{sum(map(is_ready, seen['Node'].values()))} are",
    )
    key, _, value = selector.partition("=")
    place = {"nodeSelector": {key: value or "true"}}
    item = objects.read("many-replicas", spec={"replicas": pods, "template": {"spec": place}})
    with Watch(kube, "Deployment") as watch:
        kube.create(item)
        watch.until(
            lambda kind, deployment: (deployment["status"].get("readyReplicas") or 0) >= pods,
            what="the Deployment ready",
            patience=PATIENCE_SECONDS,
        )
