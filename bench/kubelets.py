"""The peer for nodes: four nodes of Kubernetes' own kubelet, containerd and runc.

kind, k3d and minikube consist of these. Here they run as in `tests.kubelet`, without a Docker container for
each node, and with released servers of Kubernetes: without kubeadm, CoreDNS and image unpacking, so the
result is a lower bound for those tools. Each node has its own containerd, as in kind, because a kubelet
deletes unknown containers. The images are pulled before the measurement; the trainer's is made of Debian
packages, with this machine's Python environment mounted read-only. Needs root.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from bench import kwok
from bench.errors import MeasureFailed, PeerAbsent
from bench.peers import kubelet_nodes
from bench.peers.kubelet_nodes import OUTSIDE, UPLINK, make_node
from kitlib.clusters import Cluster
from kitlib.clusters.existing import ExistingCluster
from kitlib.clusters.nodes import is_ready
from kitlib.k8s.client import Kube
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.controlplane.lock import cache_lock
from localkube.errors import LocalClusterError
from tests.kubelet import images, namespaces, node, program

NODES, READY_SECONDS = 4, 120
LINK = "trainyard-nodes"
REPOSITORY = Path(__file__).parents[1]
RECIPES = {name: images.RECIPES[name] for name in ("registry.k8s.io/pause", "docker.io/pytorch/pytorch")}
RECIPES["docker.io/pytorch/pytorch"] = RECIPES["docker.io/pytorch/pytorch"] | {
    "environment": "host"
}  # the measured pods use this image
RECIPES["docker.io/library/busybox"] = {"tags": ["latest"], "cmd": ["sh"]}


@dataclass(frozen=True)
class Kubelets:
    """The parts of clusters: upstream's servers, and a containerd directory with the images."""

    servers: Path
    images: Path


def obtain(control_plane: ControlPlaneBinaries, *, folder: Path, report: Callable[[str], None]) -> Kubelets:
    """Build the programs unless they are in the cache, and pull the images.

    Raises:
        PeerAbsent: This user is not root, or programs are missing.
    """
    if os.geteuid() != 0:
        raise PeerAbsent("runc and the kubelet need root")
    try:
        node.check_programs()
        program.obtain(report=report)
    except LocalClusterError as error:
        raise PeerAbsent(f"{error}") from error
    servers = kwok.obtain_servers(control_plane.version, report=report)
    report("pulling the images of the kubelet's nodes")
    folder.mkdir()
    try:
        with images.registry(folder, report=report, recipes=RECIPES) as mirror:
            _pull(folder, mirror)
    except LocalClusterError as error:
        raise PeerAbsent(f"its images could not be made: {error}") from error
    return Kubelets(servers, folder / "node-0" / "containerd")


def _pull(folder: Path, mirror: str) -> None:
    """Pull all images with a temporary containerd."""
    puller = make_node(folder, 0, Path(), None, mirror=mirror)
    puller.folder.mkdir()
    with puller.containerd():
        for name in images.tags(RECIPES):
            command = ["ctr", f"--address={puller.folder}/containerd.sock", "--namespace=k8s.io"]
            command += ["images", "pull", f"--hosts-dir={puller.folder}/certs.d", name]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                raise PeerAbsent(f"containerd could not pull {name}: {process.stderr[-300:]}")


class KubeletCluster(AbstractContextManager[Any]):
    """A cluster of real kubelets; deleted at the end of the ``with``.

    The constructor creates the process and its namespaces; `start` starts the cluster in them.

    Args:
        peer: The programs and images.
        name: The cluster's name.
        folder: An empty folder for its files.
        report: Called before waiting for another process that runs such nodes.
    """

    def __init__(self, peer: Kubelets, name: str, *, folder: Path, report: Callable[[str], None]) -> None:
        self.name, self.folder = name, folder
        self._stack = ExitStack()
        groups = [folder.name, *(f"{folder.name}/node-{number}" for number in range(NODES))]
        with ExitStack() as stack:
            stack.enter_context(cache_lock(report, making="test-kubelet"))
            stack.enter_context(namespaces.sysctls_kept())
            stack.enter_context(namespaces.cgroups(*groups))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            for number in range(NODES):
                _copy(peer.images, folder / f"node-{number}" / "containerd")
            self._log = stack.enter_context((folder / "process.log").open("w"))
            self._process = stack.enter_context(self._isolate(peer.servers))
            self._expect("isolated")
            # Otherwise the kernel removes it some time after the end of the nodes' namespace.
            stack.callback(subprocess.run, ["ip", "link", "delete", LINK], capture_output=True, check=False)
            self._link()
            self._stack = stack.pop_all()

    def start(self) -> "KubeletCluster":
        """Start control plane, containerds and kubelets; return when the API server answers."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._expect("started")
        return self

    def wait_ready(self) -> "KubeletCluster":
        """Wait until all nodes are Ready."""
        wait(
            watch_objects(self.kube, WatchSpec("Node")),
            until=lambda objects: sum(map(is_ready, objects["Node"].values())) == NODES,
            timeout=READY_SECONDS,
            what="the kubelets' nodes to be Ready",
            about=f'cluster "{self.name}"',
            resume=f"see the logs in {self.folder}",
            describe=lambda objects: f"{sum(map(is_ready, objects['Node'].values()))} are",
        )
        return self

    @cached_property
    def kube(self) -> Kube:
        """Its API."""
        return Kube(self.folder / "kubeconfig", cluster=self.name)

    @cached_property
    def cluster(self) -> Cluster:
        """The same for calls of the kit."""
        return ExistingCluster(self.name, kubeconfig=self.folder / "kubeconfig")

    def processes(self) -> list[psutil.Process]:
        """Return its processes, without the Python process that starts them and serves DNS."""
        (first,) = psutil.Process(self._process.pid).children()
        return [child for child in first.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]

    def delete(self) -> None:
        """End its processes and remove its files."""
        self._stack.close()

    @contextmanager
    def _isolate(self, servers: Path) -> Iterator[subprocess.Popen[str]]:
        command = [*namespaces.NEW, sys.executable, "-m", kubelet_nodes.__name__]
        command += [str(self.folder), str(NODES), str(servers)]
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                # Killing the first process of the namespaces ends the others, before the wait below.
                for child in psutil.Process(process.pid).children():
                    child.kill()
                process.wait()

    def _expect(self, state: str) -> None:
        assert self._process.stdout
        line = self._process.stdout.readline().strip()
        if line != state:
            last = (self.folder / "process.log").read_text(errors="replace")[-600:]
            raise MeasureFailed(f"the kubelets' cluster has not {state}: {line} {last}")

    def _link(self) -> None:
        """Connect this machine to the nodes' network."""
        (first,) = psutil.Process(self._process.pid).children()
        for arguments in (
            ("link", "add", LINK, "type", "veth", "peer", "name", UPLINK, "netns", str(first.pid)),
            ("address", "add", f"{OUTSIDE}/32", "dev", LINK),
            ("link", "set", LINK, "up"),
            ("route", "add", f"{node.ADDRESS}/32", "dev", LINK, "src", OUTSIDE),
        ):
            subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def __exit__(self, *exception: object) -> None:
        self.delete()


def _copy(images: Path, to: Path) -> None:
    """Copy a containerd directory, with links to files and copies of databases."""
    to.parent.mkdir(parents=True)
    subprocess.run(["cp", "--archive", "--link", str(images), str(to)], check=True)
    for database in to.rglob("*.db"):
        content = database.read_bytes()
        database.unlink()
        database.write_bytes(content)
