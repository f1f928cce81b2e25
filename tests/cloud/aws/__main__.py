"""The fake as a process: ``python -m tests.cloud.aws --port 5000 --speed 60``; control it at ``/_fake/…``.

With ``--cluster lab``, a real local cluster stands behind the EKS cluster of that name: so the kit, the
command line and the notebooks can be tried on the provider eks without an account. Prints its address when it
answers, and ends when its standard input does.
"""

import argparse
import sys
from contextlib import ExitStack

from ..backing_cluster import BackingCluster
from . import FakeAmazon
from .machines import files_of, nodes_of


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.cloud.aws")
    add = parser.add_argument
    add("--port", type=int, default=0)
    add("--speed", type=float, default=0.0, help="simulated seconds in a real one; 0: stands still")
    add("--cluster", help="the name of the cluster that is to be a real one")
    add("--region", default="us-west-2", help="where that is")
    add("--nodes", type=int, default=5, help="how many machines it can have, the system's included")
    options = parser.parse_args()
    with ExitStack() as stack:
        amazon = stack.enter_context(FakeAmazon(options.port))
        if options.speed:
            amazon.clock.run(options.speed)
        if options.cluster:
            webhook = amazon.token_webhook(options.cluster)
            behind = stack.enter_context(BackingCluster(webhook, nodes=options.nodes))
            stack.enter_context(files_of(amazon, behind, region=options.region))
            there = {"endpoint": behind.endpoint, "ca": behind.ca, "on_nodes": nodes_of(behind)}
            amazon.backing(options.cluster, **there)
        print(amazon.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
