"""A node: containerd, runc and CNI plugins of Debian, kubelet and kube-proxy as Kubernetes releases them.

All files are below one folder; the network, the mounts and the processes are of the namespaces of the
process that enters ``Node``, which has to have some of its own.
"""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.controlplane import client_credentials
from localkube.controlplane.components import ListenAddresses
from localkube.errors import LocalClusterError
from localkube.network.addresses import NETWORK

from ..node.bare_control_plane import BareControlPlane
from ..patience import PATIENCE

NAME, ADDRESS = "real-kubelet", NETWORK.address
KUBELET_PORT = 10250
LISTEN = ListenAddresses(advertise=ADDRESS)
PLUGINS = Path("/usr/lib/cni")
NEEDED = {"containerd": "containerd", "runc": "runc", "ip": "iproute2", "nft": "nftables"}
PAUSE = "registry.k8s.io/pause:3.10"
CONTAINERD = "io.containerd.grpc.v1.cri"


def check_programs() -> None:
    """Check that Debian's packages are there.

    Raises:
        LocalClusterError: One is not.
    """
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if not (PLUGINS / "ptp").exists():
        missing.append("containernetworking-plugins")
    if missing:
        raise LocalClusterError(
            "not installed", about=", ".join(missing), fix=f"apt-get install {' '.join(missing)}"
        )


@dataclass(frozen=True)
class Node:
    """The node's processes; several share an address, and the kube-proxy of the first.

    Args:
        folder: For all of its files; what is in its ``containerd`` are images that need not be pulled.
        program: The kubelet and kube-proxy.
        plane: The control plane; None where only containerd runs.
        mirror: Address of the registry from which all images are pulled.
        cgroup: In which the pods are, a path from the root of each hierarchy.
        mounted: Folders of this machine that all containers can read, by their paths there.
        number: Which of the nodes it is.
    """

    folder: Path
    program: Path
    plane: BareControlPlane | None
    mirror: str
    cgroup: str
    mounted: Mapping[str, Path]
    number: int = 0

    @property
    def name(self) -> str:
        """That of the Node; the first one's has no number."""
        return f"{NAME}-{self.number}" if self.number else NAME

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the node, and yield when it is Ready.

        Raises:
            LocalClusterError: It does not become so.
        """
        with self.containerd(), self.kubelet():
            self.wait_ready()
            yield

    @contextlib.contextmanager
    def containerd(self) -> Iterator[None]:
        """Run the container runtime, and yield when it accepts connections."""
        with self._process("containerd", self._containerd()):
            self._wait(lambda: (self.folder / "containerd.sock").exists(), "containerd's socket")
            yield

    @contextlib.contextmanager
    def kubelet(self) -> Iterator[None]:
        """Run the kubelet, and with the first one kube-proxy."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._process("kubelet", self._kubelet()))
            if self.number == 0:
                stack.enter_context(self._process("kube-proxy", self._kube_proxy()))
            yield

    def wait_ready(self) -> None:
        """Wait until the Node is Ready.

        Raises:
            LocalClusterError: It does not become so.
        """
        self._wait(self._ready, "the node to be Ready")

    def _ready(self) -> bool:
        jsonpath = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        selected = f"--field-selector=metadata.name={self.name}"
        assert self.plane
        return self.plane.run("get", "nodes", selected, "-o", f"jsonpath={jsonpath}") == "True"

    def _wait(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"waited {PATIENCE} s in vain for {what}",
                    about=self.name,
                    fix=f"see the logs in {self.folder}",
                )
            time.sleep(0.2)

    @contextlib.contextmanager
    def _process(self, name: str, argv: Sequence[str | Path]) -> Iterator[None]:
        with (
            (self.folder / f"{name}.log").open("wb") as log,
            subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                yield
            finally:
                process.terminate()

    def _containerd(self) -> list[str | Path]:
        spec = json.loads(subprocess.check_output(["ctr", "oci", "spec"]))
        for place, source in self.mounted.items():
            options = ["rbind", "ro"]
            mount = {"destination": place, "type": "bind", "source": str(source), "options": options}
            spec["mounts"].append(mount)
        mirrors = self.folder / "certs.d" / "_default"
        mirrors.mkdir(parents=True)
        (mirrors / "hosts.toml").write_text(
            f'[host."http://{self.mirror}"]\n  capabilities = ["pull", "resolve"]\n'
        )
        network: dict[str, object] = {
            "type": "ptp",
            "mtu": 1500,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.folder / "ipam"),
                "ranges": [[{"subnet": f"10.244.{self.number + 1}.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        plugins = {"cniVersion": "0.4.0", "name": "pods", "plugins": [network, portmap]}
        self._write("cni/10-pods.conflist", plugins)
        runtime = f"""
version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/run"
[grpc]
address = "{self.folder}/containerd.sock"
[plugins."{CONTAINERD}"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true  # root itself may lack CAP_SYS_RESOURCE
[plugins."{CONTAINERD}".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{self.folder}/cni"
[plugins."{CONTAINERD}".registry]
config_path = "{self.folder}/certs.d"
[plugins."{CONTAINERD}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{self._write("runtime.json", spec)}"
[plugins."{CONTAINERD}".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
        (self.folder / "containerd.toml").write_text(runtime)
        return ["containerd", "--config", self.folder / "containerd.toml"]

    def _kubelet(self) -> list[str | Path]:
        assert self.plane
        pki = self.plane.paths.pki
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "address": ADDRESS,
            "port": KUBELET_PORT + self.number,
            "healthzPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "clusterDNS": [ADDRESS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            # Kubernetes would rather have version 2 of cgroups; this machine has what it has.
            "failCgroupV1": False,
            "failSwapOn": False,
            "podLogsDir": str(self.folder / "pod-logs"),
            "resolvConf": self._text("resolv.conf", ""),
            "tlsCertFile": str(pki / "kubelet-serving.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet-serving.key"),
            # The disk is the machine's, and how full it is says nothing about the notebooks.
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
        }
        return [
            self.program,
            "kubelet",
            f"--config={self._write('kubelet.json', settings)}",
            f"--kubeconfig={self._kubeconfig()}",
            f"--hostname-override={self.name}",
            f"--root-dir={self.folder}/kubelet",
            f"--node-ip={ADDRESS}",
            "--v=2",
        ]

    def _kube_proxy(self) -> list[str | Path]:
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": "10.244.0.0/16",
            "hostnameOverride": self.name,
            "clientConnection": {"kubeconfig": str(self._kubeconfig())},
            # These limits are the whole machine's.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        return [self.program, "kube-proxy", f"--config={self._write('kube-proxy.json', settings)}"]

    def _kubeconfig(self) -> Path:
        assert self.plane
        path = self.folder / "node.kubeconfig"
        if not path.exists():
            client_credentials.write_kubeconfig(
                path, server=self.plane.server, name=NAME, pki=self.plane.paths.pki, user="admin"
            )
        return path

    def _write(self, name: str, content: Mapping[str, Any]) -> str:
        return self._text(name, json.dumps(content, indent=1))

    def _text(self, name: str, content: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return str(path)
