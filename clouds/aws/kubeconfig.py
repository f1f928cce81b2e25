"""The kubeconfig of a cluster: where it is, how to know that it is the right one, and the program that brings
the credentials. Nothing secret is in it.
"""

import sys
from collections.abc import Mapping

from clouds.aws.session import AwsSession
from clouds.aws.token import EXEC
from kitlib.config import ROOT


def kubeconfig(session: AwsSession, described: Mapping) -> dict:
    """Return a kubeconfig, from what EKS says of a cluster.

    The program is this Python, so that kubectl finds it from wherever it is started.
    """
    name = described["name"]
    profile = ["--profile", session.profile] if session.profile else []
    program = {
        "apiVersion": EXEC,
        "command": sys.executable,
        "args": ["-m", "clouds.aws.token", "--cluster", name, "--region", session.region, *profile],
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "interactiveMode": "Never",
    }
    server = {
        "server": described["endpoint"],
        "certificate-authority-data": described["certificateAuthority"]["data"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": {"exec": program}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
