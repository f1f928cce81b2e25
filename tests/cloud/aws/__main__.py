"""The fake as a process: ``python -m tests.cloud.aws --cluster lab --speed 60``.

A real local cluster stands behind the EKS cluster of that name: so the kit, its command line and notebooks
can be tried on the provider eks without an account. Prints its address when it answers, and ends when its
standard input does.
"""

import argparse
import sys

from ..backing_cluster import BackingCluster
from . import FakeAws
from .machines import files_of, nodes_of
from .server import Backing

add = (parser := argparse.ArgumentParser(prog="python -m tests.cloud.aws")).add_argument
add("--port", type=int, default=0)
add("--speed", type=float, default=60.0, help="simulated seconds in a real one")
add("--cluster", required=True, help="the name of the cluster that is to be a real one")
add("--region", default="us-west-2", help="where that is")
add("--nodes", type=int, default=5, help="how many machines it can have, the system's included")
options = parser.parse_args()
with FakeAws(options.port) as aws:
    aws.clock.run(options.speed)
    with BackingCluster(aws.token_webhook(options.cluster), nodes=options.nodes) as behind:
        aws.backings[options.cluster] = Backing(behind.endpoint, behind.ca, nodes_of(behind))
        with files_of(aws, behind, region=options.region):
            print(aws.endpoint, flush=True)
            sys.stdin.read()
