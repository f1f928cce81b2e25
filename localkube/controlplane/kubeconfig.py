"""Write a kubeconfig file: one cluster, one user, everything embedded in the one file.

`~/.kube/config` is never touched: the kubeconfig of a cluster is its own file.
"""

import base64
import json
import os
from pathlib import Path

from localkube.paths import unwritable


def write(path: Path, *, server: str, ca: Path, cert: Path, key: Path, name: str) -> None:
    """Write the kubeconfig of one user of one cluster, readable by this user of the machine alone.

    Args:
        path: The file to write, whole or not at all.
        server: The API server's URL.
        ca: The authority that signed the server's certificate.
        cert: The user's certificate.
        key: The user's key.
        name: The cluster's name, also that of the context.

    Raises:
        LocalClusterError: The file cannot be written.

    Example:
        >>> write(paths.kubeconfig, server="https://127.0.0.1:6443", name="lab", ca=pki / "ca.crt",
        ...       cert=pki / "admin.crt", key=pki / "admin.key")  # doctest: +SKIP
    """
    user = f"{name}-{cert.stem}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": server, "certificate-authority-data": _embedded(ca)}}
        ],
        "users": [
            {
                "name": user,
                "user": {"client-certificate-data": _embedded(cert), "client-key-data": _embedded(key)},
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    aside = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            # JSON is YAML, and needs no library to be written right.
            json.dump(content, file, indent=2)
            file.write("\n")
        aside.rename(path)
    except OSError as error:
        raise unwritable(path, error) from error


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
