"""What a cluster of four nodes takes while nothing runs in it, without the forkserver.

All processes are counted: the supervisor and what descends from it (the site with the control plane and the
kubelet, and the gateway). Memory is the proportional set size, in which a page that several processes map is
shared out among them. kwok's figures stand beside; there is no limit on the ratio.

Bounded by upstream: the API server takes 200 MB, of which 80 are live, and each of five Go processes 19 MB
for the initialisation of its packages; the CPU is timers of etcd and the controllers, and the nodes'
leases.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from bench.lab import Lab
from bench.results import Limit, Result
from kitlib.clusters import Cluster

SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 45, 10
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 60, 10
MEGABYTES, PERCENT = 400, 2
NOUNS = {"megabytes": "memory (PSS)", "percent": "CPU"}


@dataclass(frozen=True)
class Usage:
    """Of a group of processes, over a while.

    Attributes:
        megabytes: Proportional set size at the end, by process name.
        percent: Of one core, by process name.
    """

    megabytes: dict[str, float]
    percent: dict[str, float]


def measure(lab: Lab) -> list[Result]:
    """Watch each side idle, one after the other, so that neither shares its pages with the other."""
    lab.clear()
    with lab.cluster(warm=False) as cluster:
        ours = _watch(lab, "our cluster", lambda: processes_of(cluster))
        sharing = sharers(processes_of(cluster))
    theirs: list[Usage] = []
    if lab.kwok is not None:
        with lab.kwok_cluster() as peer:
            peer.add_nodes()
            theirs = _watch(lab, "kwok's cluster", lambda: [psutil.Process(pid) for pid in peer.pids()])
    notes = (
        f"{sharing} processes of other clusters share pages with ours, which then count less"
        if sharing
        else ""
    )
    return [
        _result(
            lab,
            ours,
            theirs,
            "megabytes",
            "MB",
            Limit(MEGABYTES, of="value", unit="MB"),
            notes,
        ),
        _result(lab, ours, theirs, "percent", "% of a core", Limit(PERCENT, of="value", unit="%")),
    ]


def _result(
    lab: Lab,
    ours: list[Usage],
    theirs: list[Usage],
    attribute: str,
    unit: str,
    limit: Limit,
    notes: str = "",
) -> Result:
    return Result(
        what=f"idle cluster of 4 nodes without forkserver, {NOUNS[attribute]}",
        unit=unit,
        ours=tuple(sum(getattr(each, attribute).values()) for each in ours),
        peer="kwok, 4 fake nodes",
        theirs=tuple(sum(getattr(each, attribute).values()) for each in theirs),
        absent=lab.kwok_absent,
        limit=limit,
        notes=notes,
        details={
            "ours": [getattr(each, attribute) for each in ours],
            "kwok": [getattr(each, attribute) for each in theirs],
        },
    )


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    """Return all processes of one of our clusters."""
    pids = {each["pid"] for each in cluster.status["processes"].values()}
    found = [psutil.Process(pid) for pid in pids]
    found += [child for each in found for child in each.children(recursive=True)]
    return list(dict.fromkeys(found))


def sharers(processes: Iterable[psutil.Process]) -> int:
    """Return how many other processes run the program of these; for one, clusters that are not this run's."""
    ours = {each.pid: each.exe() for each in processes}
    programs = {exe for exe in ours.values() if "python" not in exe}
    others = psutil.process_iter(["pid", "exe"])
    return sum(each.info["exe"] in programs and each.info["pid"] not in ours for each in others)


def _watch(lab: Lab, name: str, processes: Callable[[], list[psutil.Process]]) -> list[Usage]:
    lab.report(f"watching {name} idle")
    time.sleep(QUICK_SETTLE_SECONDS if lab.quick else SETTLE_SECONDS)  # nothing happens that could be watched
    window = QUICK_WINDOW_SECONDS if lab.quick else WINDOW_SECONDS
    return [usage(processes(), seconds=window) for _ in range(lab.rounds)]


def usage(processes: Iterable[psutil.Process], *, seconds: float) -> Usage:
    """Return what processes use while ``seconds`` go by."""
    names = {each: _name(each, index) for index, each in enumerate(processes)}
    began, before = time.monotonic(), {each: _cpu(each) for each in names}
    time.sleep(seconds)
    passed = time.monotonic() - began
    return Usage(
        megabytes={name: each.memory_full_info().pss / 1e6 for each, name in names.items()},
        percent={name: (_cpu(each) - before[each]) / passed * 100 for each, name in names.items()},
    )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _name(process: psutil.Process, index: int) -> str:
    """Return a name that tells processes of one program apart: ours all are Python or one Go program."""
    words = [word for word in process.cmdline()[:6] if not word.startswith("-")]
    return f"{index} {' '.join(word.rpartition('/')[2] for word in words[:2])}"
