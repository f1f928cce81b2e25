"""From nothing to the first `kubectl top nodes` that names every node, by the real metrics-server.

metrics-server answers after its second look at the nodes, ten seconds after the first. No peer has it.
"""

import os
import subprocess
import time

from bench.errors import MeasureFailed
from bench.lab import NODES, Lab
from bench.results import Limit, Result
from kitlib.clusters import Cluster

SECONDS, PATIENCE, POLL_SECONDS = 25, 120, 0.1


def measure(lab: Lab) -> list[Result]:
    """Create clusters, and ask each until it answers."""
    lab.clear()
    samples = [_sample(lab) for _ in range(lab.rounds)]
    return [
        Result(
            what=f"create a cluster of {NODES} nodes → first kubectl top nodes",
            unit="s",
            ours=tuple(answered for _, answered in samples),
            limit=Limit(SECONDS, of="value", unit="s"),
            details={"ours: command came back": [created for created, _ in samples]},
        )
    ]


def _sample(lab: Lab) -> tuple[float, float]:
    """Return the seconds until the cluster was there, and until it told what its nodes use."""
    lab.report("creating a cluster, to ask what its nodes use")
    began = time.monotonic()
    with lab.cluster() as cluster:
        created = time.monotonic() - began
        while _nodes_told(cluster) < NODES:
            if time.monotonic() - began > PATIENCE:
                raise MeasureFailed(f"kubectl top named no {NODES} nodes within {PATIENCE} s")
            time.sleep(POLL_SECONDS)  # what metrics-server knows cannot be watched
        return created, time.monotonic() - began


def _nodes_told(cluster: Cluster) -> int:
    command = [*cluster.kubectl_command(), "top", "nodes", "--no-headers"]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0
