"""How fast a running container's lines arrive: ``kubectl logs -f`` beside ``tail -f`` of the file on disk.

The follower is there before the container writes, as fast as its lines are taken; the clock runs from the
first of them to the last. So the kubelet's writing of the log is in both figures, and reading it, TLS, the
API server and kubectl in ours. The log stays below the size at which a new file is begun, where tail would
end. Time for a line is shown, because less is better in this table: the goal of half as many lines per second
is twice as much time.

kubectl reads, allocates and writes each line by itself: it alone takes more than 1 µs of processor time for
one, kubelet, API server and the way to it about as much together, and tail's whole figure is 0.3 µs on two
cores that are otherwise idle. So on two cores its line misses the goal whatever the cluster does. A plain
client of the API server is measured beside it, to tell what is ours from what is kubectl's; from within the
cluster's network it took 0.5 µs for a line.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import objects, plain_follower
from bench.errors import MeasureFailed
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from bench.watching import Watch, has_started, wait_gone
from kitlib.clusters import Cluster

LINES = 60_000
PASSES, QUICK_PASSES = 6, 2
BLOCK = 1 << 20
SILENCE_SECONDS = 60.0
BREATH_SECONDS = 0.001
POD = "writer"
Follower = Callable[[Cluster, str], list[str]]  # the command that follows the log of the pod with this uid


def measure(lab: Lab) -> list[Result]:
    """Follow new containers, by each program in turns."""
    lab.clear(KUBELET, KWOK)
    passes = QUICK_PASSES if lab.quick else PASSES
    lab.report("following logs")
    sides = {
        "ours": lambda: _series(lab.ours, _kubectl, passes),
        "plain": lambda: _series(lab.ours, _plain, passes),
        "theirs": lambda: _series(lab.ours, _tail, passes),
    }
    for side in sides.values():
        side()
    samples = alternate(sides, lab.rounds)
    rates = {side: [1e6 / seconds for seconds in found] for side, found in samples.items()}
    return [
        Result(
            what=f"{LINES} lines of 100 bytes by {what}, each",
            unit="µs",
            ours=tuple(samples[side]),
            peer="tail -f of the log file",
            theirs=tuple(samples["theirs"]),
            limit=Limit(2.0),
            details={"lines a second": {side: rates[side], "theirs": rates["theirs"]}},
        )
        for what, side in (("kubectl logs -f", "ours"), ("a plain HTTPS client", "plain"))
    ]


def _series(cluster: Cluster, follower: Follower, passes: int) -> float:
    """Return the microseconds for a line, over several containers."""
    seconds = sum(_one(cluster, follower) for _ in range(passes))
    return seconds / (passes * LINES) * 1e6


def _one(cluster: Cluster, follower: Follower) -> float:
    with Watch(cluster.kube, "Pod") as watch:
        uid = cluster.kube.create(objects.read(POD))["metadata"]["uid"]
        watch.until(lambda kind, pod: has_started(pod), what=f"{POD} started")
    try:
        with subprocess.Popen(follower(cluster, uid), stdout=subprocess.PIPE) as process:
            assert process.stdout
            try:
                fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, BLOCK)
                return _follow(cluster, process.stdout.fileno())
            finally:
                process.kill()
    finally:
        cluster.kube.delete("Pod", POD)
        wait_gone(cluster.kube)


def _follow(cluster: Cluster, descriptor: int) -> float:
    """Let the container write, and return the seconds from its first line to its last."""
    _read(descriptor)  # that it is ready
    with subprocess.Popen([*_command(cluster), "exec", POD, "--", "touch", "/tmp/go"]) as go:
        seen, began = _read(descriptor), time.perf_counter()
        while seen < LINES:
            seen += _read(descriptor)
        seconds = time.perf_counter() - began
    if go.returncode:
        raise MeasureFailed("the container could not be told to write")
    return seconds


def _read(descriptor: int) -> int:
    """Return how many lines have arrived in the last millisecond.

    kubectl writes each line by itself: a reader at its heels would take the processor that is measured.
    """
    data = os.read(descriptor, BLOCK)
    time.sleep(BREATH_SECONDS)
    if not data:
        raise MeasureFailed("the follower of a log has ended before the log")
    return data.count(b"\n")


def _kubectl(cluster: Cluster, uid: str) -> list[str]:
    return [*_command(cluster), "logs", "-f", POD]


def _plain(cluster: Cluster, uid: str) -> list[str]:
    config = json.loads(cluster.kubeconfig.read_text())
    url = f"{config['clusters'][0]['cluster']['server']}/api/v1/namespaces/default/pods/{POD}/log?follow=true"
    pki = cluster.kubeconfig.parent / "pki"
    files = (str(pki / name) for name in ("ca.crt", "admin.crt", "admin.key"))
    return [sys.executable, plain_follower.__file__, url, *files]


def _tail(cluster: Cluster, uid: str) -> list[str]:
    log = cluster.kubeconfig.parent / "pods" / uid / "logs" / "main" / "0.log"
    _wait_for(log)
    return ["tail", "-n", "+1", "-f", str(log)]


def _wait_for(log: Path) -> None:
    """The file is made with the first line, which comes a moment after the container's start."""
    end = time.monotonic() + SILENCE_SECONDS
    while not log.exists():
        if time.monotonic() > end:
            raise MeasureFailed(f"there is no log at {log}")
        time.sleep(0.001)


def _command(cluster: Cluster) -> list[str]:
    return [*cluster.kubectl_command(), "--kubeconfig", str(cluster.kubeconfig)]
