"""An unused cluster of four nodes: its CPU while asleep, and its first response after waking.

Clusters sleep after five idle minutes; here after five seconds. The CPU time of all processes is measured for
a minute. The first response is a list of the nodes over a new connection.
"""

import contextlib
import http.client
import time

from bench.lab import Lab, environment
from bench.measures.idle import processes_of, usage
from bench.results import Limit, Result
from localkube.api_path import api_path
from localkube.cluster.preparation import SLEEP
from localkube.controlplane.client_credentials import client_tls
from localkube.paths import ClusterPaths

IDLE_SECONDS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS, AWAKE_SECONDS = 5, 60, 10, 60


def measure(lab: Lab) -> list[Result]:
    """Let a cluster sleep, measure it, and wake it."""
    lab.clear()
    percents, answers = [], []
    with environment(SLEEP, str(IDLE_SECONDS)), lab.cluster() as cluster:
        paths = ClusterPaths(cluster.name)
        for _ in range(lab.rounds):
            lab.report("waiting until the cluster sleeps")
            end = time.monotonic() + AWAKE_SECONDS
            while not paths.asleep.exists():
                if time.monotonic() > end:
                    raise AssertionError(
                        f"the cluster was awake for {AWAKE_SECONDS} s; its supervisor's log says why"
                    )
                time.sleep(0.1)
            window = QUICK_WINDOW_SECONDS if lab.quick else WINDOW_SECONDS
            percents.append(sum(usage(processes_of(cluster), seconds=window).percent.values()))
            answers.append(1000 * _answer_seconds(paths, cluster.status["api_port"]))
    limits = Limit(0.05, of="value", unit="% of a core"), Limit(150, of="value", unit="ms")
    return [
        Result("a cluster of 4 nodes that sleeps, CPU", "% of a core", tuple(percents), limit=limits[0]),
        Result("a cluster that sleeps: connect → the nodes", "ms", tuple(answers), limit=limits[1]),
    ]


def _answer_seconds(paths: ClusterPaths, port: int) -> float:
    """List the nodes over a connection that is closed afterwards, as an open one keeps the cluster awake."""
    start, tls = time.monotonic(), client_tls(paths.pki)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", port, context=tls)) as connection:
        connection.request("GET", api_path("v1/nodes"))
        connection.getresponse().read()
        return time.monotonic() - start
