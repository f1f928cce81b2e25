"""Asking a running cluster's agent for something that Kubernetes has no verb for; see ``node/control.py``."""

import json
import socket
import time
from typing import Any

from localkube.cluster.discovery import check_name, status
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths
from localkube.runtime.client import short_name

# More than an agent takes to start on a busy machine, and longer than it waits itself for anything.
CONNECT_SECONDS, ANSWER_SECONDS = 60, 900
POLL_SECONDS = 0.05


def ask(name: str, request: dict[str, Any]) -> Any:
    """Send a request to the agent of the cluster ``name`` and return its result.

    Raises:
        LocalClusterError: The cluster does not run, or the agent refused.
    """
    check_name(name)
    paths = ClusterPaths(name)
    now = status(name)
    if now["state"] != "running":
        raise LocalClusterError(
            f"the cluster is {now['state']}: {now['reason']}", about=name, fix=f"kit cluster start {name}"
        )
    with _connected(paths) as sock:
        sock.sendall(json.dumps(request).encode() + b"\n")
        line = sock.makefile().readline()
    if not line:
        raise LocalClusterError("the agent ended before it answered", about=name, fix="try again")
    answer = json.loads(line)
    if "error" in answer:
        raise LocalClusterError(**answer["error"])
    return answer["result"]


def _connected(paths: ClusterPaths) -> socket.socket:
    """Return a connection to the agent, which may be starting again just now."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(ANSWER_SECONDS)
        try:
            with short_name(paths.control) as name:
                sock.connect(name)
            return sock
        except OSError as error:
            sock.close()
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"the agent does not answer: {error.strerror}",
                    about=paths.name,
                    fix=f"look into {paths.logs / 'agent.log'}",
                ) from error
        time.sleep(POLL_SECONDS)
