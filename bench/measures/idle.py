"""The resources of an idle cluster of four nodes, without the forkserver.

All processes are counted: the supervisor and its descendants (the runtime with the control plane and the
kubelet, and the gateway). Memory is the proportional set size, which divides shared pages among the processes
that map them. The peers are four kubelets with a containerd each, kube-proxy and released servers, without
their DNS server; and kwok.

Bounded by upstream: the API server takes 200 MB, of which 80 are live, and each of five Go processes 19 MB to
initialise its packages; the CPU time is for timers of etcd and the controllers, and the nodes' leases.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from kitlib.clusters import LocalCluster

SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 25, 10
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 15, 10
LINES = {
    "megabytes": ("memory (PSS)", "MB", {KUBELET: Limit(0.5), KWOK: None}),
    "percent": ("CPU", "% of a core", {KUBELET: Limit(0.5), KWOK: None}),
}


@dataclass(frozen=True)
class Usage:
    """The usage of a group of processes over a period.

    Attributes:
        megabytes: Proportional set size at the end, by process name.
        percent: Of one core, by process name.
    """

    megabytes: dict[str, float]
    percent: dict[str, float]


def measure(lab: Lab) -> list[Result]:
    """Measure each side idle, one after the other, so that they share no pages."""
    lab.clear()
    usages: dict[str, list[Usage]] = {}
    with lab.cluster(warm=False) as cluster:
        usages["ours"] = _watch(lab, "our cluster", lambda: processes_of(cluster))
        sharing = sharers(processes_of(cluster))
    if lab.has(KUBELET):
        with lab.kubelet_cluster() as kubelets:
            usages[KUBELET] = _watch(lab, "the kubelets' cluster", kubelets.start().wait_ready().processes)
    if lab.has(KWOK):
        with lab.kwok_cluster() as peer:
            peer.add_nodes()
            processes = [psutil.Process(pid) for pid in peer.pids()]
            usages[KWOK] = _watch(lab, "kwok's cluster", lambda: processes)
    notes = f"{sharing} processes of other clusters share pages with ours" if sharing else ""
    return [
        line
        for attribute, (noun, unit, limits) in LINES.items()
        for line in lab.compare(
            {
                side: [sum(getattr(u, attribute).values()) for u in side_usages]
                for side, side_usages in usages.items()
            },
            what=f"idle cluster of 4 nodes without forkserver, {noun}",
            unit=unit,
            limits=limits,
            notes=notes if attribute == "megabytes" else "",
            details={
                side: [getattr(usage, attribute) for usage in side_usages]
                for side, side_usages in usages.items()
            },
        )
    ]


def processes_of(cluster: LocalCluster) -> list[psutil.Process]:
    """Return all processes of one of our clusters."""
    pids = {process["pid"] for process in cluster.status["processes"].values()}
    processes = [psutil.Process(pid) for pid in pids]
    processes += [child for process in processes for child in process.children(recursive=True)]
    return list(dict.fromkeys(processes))


def sharers(processes: Iterable[psutil.Process]) -> int:
    """Return the number of other processes of the same program, such as those of other clusters."""
    programs_by_pid = {process.pid: process.exe() for process in processes}
    programs = {exe for exe in programs_by_pid.values() if "python" not in exe}
    running = psutil.process_iter(["pid", "exe"])
    return sum(
        process.info["exe"] in programs and process.info["pid"] not in programs_by_pid for process in running
    )


def _watch(lab: Lab, name: str, processes: Callable[[], list[psutil.Process]]) -> list[Usage]:
    lab.report(f"watching {name} idle")
    time.sleep(QUICK_SETTLE_SECONDS if lab.quick else SETTLE_SECONDS)  # no event marks the end of settling
    window = QUICK_WINDOW_SECONDS if lab.quick else WINDOW_SECONDS
    return [usage(processes(), seconds=window) for _ in range(lab.rounds)]


def usage(processes: Iterable[psutil.Process], *, seconds: float) -> Usage:
    """Return the usage of processes over ``seconds``."""
    names = {process: _name(process, index) for index, process in enumerate(processes)}
    start, cpu_before = time.monotonic(), {process: _cpu(process) for process in names}
    time.sleep(seconds)
    elapsed = time.monotonic() - start
    return Usage(
        megabytes={name: process.memory_full_info().pss / 1e6 for process, name in names.items()},
        percent={
            name: (_cpu(process) - cpu_before[process]) / elapsed * 100 for process, name in names.items()
        },
    )


def memory(processes: Iterable[psutil.Process]) -> float:
    """Return the proportional set size of processes in megabytes."""
    return sum(process.memory_full_info().pss for process in processes) / 1e6


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _name(process: psutil.Process, index: int) -> str:
    """Return a name that distinguishes processes of one program."""
    arguments = [argument for argument in process.cmdline()[:6] if not argument.startswith("-")]
    return f"{index} {' '.join(argument.rpartition('/')[2] for argument in arguments[:2])}"
