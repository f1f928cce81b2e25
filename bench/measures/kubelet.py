"""What the kubelet and the runtime take for four nodes with twenty pods that sleep.

All CPU of both is put on the pods, their nodes' heartbeats included. metrics-server asks for the figures of
every pod meanwhile, as always. Memory is the proportional set size.
"""

import time
from typing import Any

import psutil

from bench import objects
from bench.lab import NODES, Lab
from bench.measures.idle import processes_of, usage
from bench.results import Limit, Result
from bench.watching import Watch, has_started
from kitlib.clusters import Cluster, LocalCluster

PODS = 20
MEGABYTES, PERCENT = 80, 0.1
SETTLE_SECONDS, WINDOW_SECONDS, QUICK_SECONDS = 20, 60, 10
PROGRAMS = ("localkube.kubelet", "runtime/init.py", "runtime/launcher.py")


def measure(lab: Lab) -> list[Result]:
    """Watch one cluster with its pods."""
    lab.clear()
    with lab.cluster(warm=False) as cluster:
        lab.report(f"starting {PODS} pods that sleep")
        _start(cluster)
        time.sleep(QUICK_SECONDS if lab.quick else SETTLE_SECONDS)  # nothing happens that could be watched
        window = QUICK_SECONDS if lab.quick else WINDOW_SECONDS
        taken = [usage(_programs(cluster), seconds=window) for _ in range(lab.rounds)]
    about = f"with {NODES} nodes and {PODS} pods that sleep"
    return [
        Result(
            what=f"kubelet and runtime {about}, memory (PSS)",
            unit="MB",
            ours=tuple(sum(sample.megabytes.values()) for sample in taken),
            limit=Limit(MEGABYTES, of="value", unit="MB"),
            details={"ours": [sample.megabytes for sample in taken]},
        ),
        Result(
            what=f"kubelet and runtime {about}, CPU for each pod",
            unit="% of a core",
            ours=tuple(sum(sample.percent.values()) / PODS for sample in taken),
            limit=Limit(PERCENT, of="value", unit="%"),
            details={"ours": [sample.percent for sample in taken]},
        ),
    ]


def _start(cluster: Cluster) -> None:
    with Watch(cluster.kube, "Pod") as watch:
        waited = set()
        for number in range(PODS):
            pod = objects.read("sleeper", metadata={"name": f"sleeper-{number}"})
            waited.add(cluster.kube.create(pod)["metadata"]["uid"])

        def all_started(kind: str, pod: dict[str, Any]) -> bool:
            if has_started(pod):
                waited.discard(pod["metadata"]["uid"])
            return not waited

        watch.until(all_started, what=f"{PODS} pods started")


def _programs(cluster: LocalCluster) -> list[psutil.Process]:
    """Return the kubelet, and the runtime with the process that waits for it outside its namespaces."""
    every = [(process, " ".join(process.cmdline()[:6])) for process in processes_of(cluster)]
    return [process for process, command in every if any(program in command for program in PROGRAMS)]
