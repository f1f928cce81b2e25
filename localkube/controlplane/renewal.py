"""Renew a cluster's certificates that are about to expire: ``python -m localkube.controlplane.renewal ROOT``.

The supervisor runs it twice a day. The API server and all clients of Kubernetes in the cluster read the
files again by themselves, and so does the kubelet.
"""

import json
import sys
from pathlib import Path

from localkube.controlplane import certificates, client_credentials


def renew(root: Path) -> None:
    """Renew the certificates in the cluster's directory, and its user's kubeconfig."""
    settings = json.loads((root / "plan.json").read_text())["certificates"]
    certificates.issue(root / "pki", **settings["issue"])
    client_credentials.write_kubeconfig(root / "kubeconfig", pki=root / "pki", **settings["kubeconfig"])


if __name__ == "__main__":
    renew(Path(sys.argv[1]))
