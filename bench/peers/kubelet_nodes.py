"""The inner process of `bench.kubelets`: a released control plane, and nodes of Kubernetes' own kubelet.

``python -m bench.peers.kubelet_nodes FOLDER NODES SERVERS`` runs in namespaces of its own. It prints
``isolated``, waits for a line, and prints ``started`` when the kubelets run. All processes end with it.
"""

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.kwok import SERVERS
from localkube.controlplane import binaries, client_credentials
from localkube.controlplane.components import ComponentCommand
from tests.kubelet import namespaces, node, program, services
from tests.node.bare_control_plane import BareControlPlane, bare

UPLINK, OUTSIDE = "uplink", "169.254.77.1"
# Flags of the local cluster that kubeadm and kind do not set.
TUNED = ("--kube-api-qps=", "--kube-api-burst=", "--node-monitor-", "--horizontal-pod-autoscaler-")


def main() -> None:
    """Run the cluster until this process is killed."""
    folder, count, servers = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    print("isolated", flush=True)
    sys.stdin.readline()
    with running(folder, count, servers):
        print("started", flush=True)
        signal.pause()


@contextmanager
def running(folder: Path, count: int, servers: Path) -> Iterator[None]:
    """Run the control plane and nodes, whose directories already contain the images."""
    namespaces.make_network()
    namespaces.join(UPLINK, OUTSIDE)
    namespaces.cover(folder)
    with ExitStack() as stack:
        plane = stack.enter_context(_control_plane(folder, servers))
        kubelet = program.obtain(report=lambda line: None)
        nodes = [make_node(folder, number, kubelet, plane) for number in range(count)]
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(stack.enter_context, [node.containerd() for node in nodes]))
        for node in nodes:
            stack.enter_context(node.kubelet())
        (folder / "volumes").mkdir()
        stack.enter_context(services.running(plane, volumes=folder / "volumes", metrics=False))
        yield


def make_node(
    folder: Path, number: int, kubelet: Path, plane: BareControlPlane | None, *, mirror: str = "127.0.0.1:9"
) -> node.Node:
    """Describe a node whose pods can read this Python and its packages."""
    prefixes = {prefix: Path(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    name = f"node-{number}"
    return node.Node(folder / name, kubelet, plane, mirror, f"/{folder.name}/{name}", prefixes, number)


@contextmanager
def _control_plane(folder: Path, servers: Path) -> Iterator[BareControlPlane]:
    """Run upstream's programs; ``folder/kubeconfig`` is an administrator's for use from outside."""
    kit_binaries = binaries.present()
    programs = {name: (str(servers / name),) for name in SERVERS} | {
        "kubectl": kit_binaries.programs["kubectl"]
    }
    control_plane = dataclasses.replace(kit_binaries, programs=programs)
    components = tuple(SERVERS)
    with bare(
        folder / "plane", control_plane, components=components, addresses=node.LISTEN, change=_as_released
    ) as plane:
        server = f"https://{node.ADDRESS}:{node.LISTEN.api_port}"
        client_credentials.write_kubeconfig(
            folder / "kubeconfig", server=server, name="kubelet", pki=plane.paths.pki, user="admin"
        )
        yield plane


def _as_released(component: ComponentCommand) -> ComponentCommand:
    """Reset our control plane's settings for speed: request rates, garbage collection."""
    for argument in component.argv:
        if component.name == "kube-scheduler" and argument.startswith("--config="):
            path = Path(argument.partition("=")[2])
            settings = json.loads(path.read_text(encoding="utf-8"))
            del settings["clientConnection"]["qps"], settings["clientConnection"]["burst"]
            path.write_text(json.dumps(settings), encoding="utf-8")
    argv = tuple(argument for argument in component.argv if not argument.startswith(TUNED))
    return dataclasses.replace(component, argv=argv, env={})


if __name__ == "__main__":
    main()
