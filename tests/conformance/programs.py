"""Build the suite, ginkgo and the programs of its images from Go modules, as the control plane is built.

They are kept in the cache by a digest of what they are built from; Go's own cache is shared with the control
plane's, whose versions and flags are the same.
"""

import hashlib
import json
import subprocess
from pathlib import Path

from localkube.controlplane import build
from localkube.controlplane.lock import Report, cache_lock
from localkube.errors import LocalClusterError
from localkube.paths import cache_dir, private_dir

MODULE = Path(__file__).parent / "module"
KUBERNETES = "k8s.io/kubernetes"
SUITE, GINKGO = f"{KUBERNETES}/test/e2e", "github.com/onsi/ginkgo/v2/ginkgo"
SECONDS, FREE_BYTES = 150, 4 << 30


def cache() -> Path:
    return private_dir(cache_dir() / "conformance")


def obtain(package: str, *, report: Report) -> Path:
    """Build the program of a package of the module, unless it is in the cache, and return its path.

    Raises:
        LocalClusterError: There is no Go, modules cannot be fetched, or the build fails.
    """
    name = "e2e.test" if package == SUITE else Path(package.removesuffix("/v3")).name
    folder = cache() / f"{name}-{_digest(package)}"
    if not (folder / name).exists():
        with cache_lock(report, making=name):
            if not (folder / name).exists():
                _build(package, folder, name, report)
    return folder / name


def sources(module: str) -> Path:
    """Find a module's sources in Go's cache, which has them once a program of it is built."""
    command = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]
    done = subprocess.run(command, cwd=MODULE, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise LocalClusterError(
            f"the sources are not found: {done.stderr.strip()}", about=module, fix="put Go on PATH"
        )
    return Path(done.stdout.strip())


def _build(package: str, folder: Path, name: str, report: Report) -> None:
    # Upstream has vetted its own tests; looking at every package again takes as long as compiling them.
    verb = ("test", "-c", "-vet=off") if package == SUITE else ("build",)
    module = build.GoModule(MODULE, 1900, SECONDS, FREE_BYTES, build.flags(), verb=verb)
    build.build(folder, cache=cache(), package=package, program=name, report=report, module=module)


def _digest(package: str) -> str:
    digest = hashlib.sha256(json.dumps([package, build.flags()]).encode())
    for path in sorted(MODULE.rglob("*")):
        if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
