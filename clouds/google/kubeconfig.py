"""The kubeconfig of a GKE cluster: its address, its CA, and the kit's own program for signing in."""

import sys

from google.cloud.container_v1 import types

from clouds.google import token
from kitlib.config import ROOT


def kubeconfig(cluster: types.Cluster) -> dict:
    """Return a kubeconfig without any secret: whoever reads it still has to sign in at Google Cloud."""
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-P", token.__file__],  # -P: what lies beside it is named as modules of Python's own are
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],  # kubectl may be started anywhere
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    authority = cluster.master_auth.cluster_ca_certificate
    there = {"server": f"https://{cluster.endpoint}", "certificate-authority-data": authority}
    name = cluster.name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": there}],
        "users": [{"name": name, "user": {"exec": program}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
