"""Build the kubelet and kube-proxy as one program, in the way the control plane is built."""

import hashlib
import json
from pathlib import Path

from localkube.controlplane import build
from localkube.controlplane.lock import Report, cache_lock
from localkube.paths import cache_dir, private_dir

MODULE = Path(__file__).parent / "module"
NAME = "kubernetes-node"
PACKAGES, SECONDS, FREE_BYTES = 1700, 180, 4 << 30


def cache() -> Path:
    return private_dir(cache_dir() / "kubelet")


def obtain(*, report: Report) -> Path:
    """Build the program, unless it is in the cache, and return its path.

    Raises:
        LocalClusterError: There is no Go, modules cannot be fetched, or the build fails.
    """
    digest = hashlib.sha256(json.dumps(build.flags()).encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((MODULE / name).read_bytes())
    folder = cache() / f"{NAME}-{digest.hexdigest()[:12]}"
    if not (folder / NAME).exists():
        with cache_lock(report, making=NAME):
            if not (folder / NAME).exists():
                module = build.GoModule(MODULE, PACKAGES, SECONDS, FREE_BYTES, build.flags())
                build.build(folder, cache=cache(), package=".", program=NAME, report=report, module=module)
    return folder / NAME
