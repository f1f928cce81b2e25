"""The credentials of a cluster's clients: certificate files, TLS, kubeconfigs.

Issuing them is in ``certificates.py``, whose imports would cost each process of a cluster 30 ms.
"""

import base64
import json
import ssl
from pathlib import Path

from localkube.paths import write_private, writing


def node_file(node: str) -> str:
    """Name the file of a node's own certificate."""
    return f"node-{node}"


def client_tls(pki: Path) -> ssl.SSLContext:
    """Trust a cluster's authority, and be its administrator."""
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return context


def write_kubeconfig(
    path: Path, *, server: str, name: str, pki: Path, user: str, embedded: bool = True
) -> None:
    """Write the kubeconfig of one user of one cluster, for this user alone.

    Args:
        path: The file to write; ``~/.kube/config`` is never touched.
        embedded: Include the certificates; otherwise it names their files, which clients of Kubernetes
            read again when they change.
    """
    files = {
        "client-certificate": pki / f"{user}.crt",
        "client-key": pki / f"{user}.key",
        "certificate-authority": pki / "ca.crt",
    }
    if embedded:
        fields = {
            f"{field}-data": base64.b64encode(file.read_bytes()).decode() for field, file in files.items()
        }
    else:
        fields = {field: str(file) for field, file in files.items()}
    authority = {"server": server} | {key: fields.pop(key) for key in list(fields) if "authority" in key}
    context = {"cluster": name, "user": f"{name}-{user}"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": authority}],
        "users": [{"name": f"{name}-{user}", "user": fields}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    with writing(path):
        write_private(path, json.dumps(content, indent=2) + "\n")  # JSON is YAML
