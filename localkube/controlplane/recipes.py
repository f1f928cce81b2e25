"""The programs of known images that are no part of a control plane, and their place in the cache.

Only facts and file checks, so that the kubelet can look at every container start. Obtaining them is in
``programs.py``.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from localkube.controlplane import build, overlay
from localkube.paths import cache_dir, target

MODULES = Path(__file__).parent / "modules"
FLAGS = (*build.COMPILING, "-ldflags=-s -w")


@dataclass(frozen=True)
class Recipe:
    """How one program is obtained.

    Attributes:
        name: What the table of images calls it; for a Go program also the folder of its module.
        package: The Go package of its main function.
        manifests: The folder of its Go module with what the API server needs: CRDs, RBAC, webhooks.
        packages: About how many Go packages are compiled.
        seconds: How long it took on the machine of ``build_time.py``. An operator that shares packages with
            the control plane comes after that here, as do its packages.
        overlay: Modules of which files are added or passed over; see ``overlay.py``.
    """

    name: str
    version: str
    package: str
    manifests: str = ""
    packages: int = 0
    seconds: int = 20
    overlay: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """The hash of its module, overlay and build flags: a program of another build is not used."""
        digest = hashlib.sha256(json.dumps([self.package, FLAGS]).encode())
        for part in overlay.digest_parts(self.overlay):
            digest.update(part)
        for name in ("go.mod", "go.sum"):
            digest.update((MODULES / self.name / name).read_bytes())
        return digest.hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """The folder of the program and its manifests."""
        return self.folder_for(*target())

    def folder_for(self, system: str, architecture: str) -> Path:
        """That folder for another machine than this one."""
        name = f"{self.name}-{self.version}-{self.fingerprint}-{system}-{architecture}"
        return cache_dir() / "programs" / name

    @property
    def path(self) -> Path:
        # A container says `etcd`, whichever version stands in.
        return self.folder / ("etcd" if self.name == "etcd-v2" else self.name)

    @property
    def ready(self) -> bool:
        return self.path.is_file() and os.access(self.path, os.X_OK)

    @property
    def command(self) -> str:
        """The command that obtains it."""
        return f"python -m localkube get-images {self.name}"


RECIPES = {
    recipe.name: recipe
    for recipe in (
        # torch's rendezvous renews a directory's TTL by the v2 API, which is "Not a file" to etcd 3.5:
        # https://github.com/etcd-io/etcd/issues/13589
        Recipe("etcd-v2", "v3.4.13", package="go.etcd.io/etcd", packages=430, seconds=45),
        Recipe(
            "training-operator",
            "v1.8.1",
            package="github.com/kubeflow/training-operator/cmd/training-operator.v1",
            manifests="manifests",
            packages=830,
            seconds=80,
            overlay=("github.com/kubeflow/training-operator",),
        ),
        Recipe(
            "trainer-controller-manager",
            "v2.3.0",
            package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            manifests="manifests",
            packages=500,
            seconds=70,
            overlay=("github.com/kubeflow/trainer/v2",),
        ),
        Recipe(
            "jobset",
            "v0.12.0",
            package="sigs.k8s.io/jobset",
            manifests="config",
            packages=70,
            seconds=15,
            overlay=("sigs.k8s.io/jobset",),
        ),
        Recipe(
            "kueue",
            "v0.19.2",
            package="sigs.k8s.io/kueue/cmd/kueue",
            manifests="config",
            packages=284,
            seconds=40,
            overlay=("github.com/kubeflow/trainer/v2",),
        ),
    )
}
