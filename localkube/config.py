"""The requested shape of a cluster, validated and divided over this machine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from string import ascii_lowercase
from typing import Any
from urllib.parse import urlsplit

from localkube.errors import LocalClusterError
from localkube.host import Gpu, HostInfo
from localkube.kubelet.images.image_table import AUTO, IMAGE_MODES
from localkube.kubelet.logs.container_log import LogLimits
from localkube.kubelet.plugins.declared_gpu import DeclaredGpu
from localkube.kubelet.quantity import parse
from localkube.kubelet.resources.cgroups import PIDS_LIMIT
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.resources.pressure import TRANSITION_SECONDS, parse_thresholds

MAX_NODES = 100
MIN_PIDS = 256
MODES = ("auto", "namespaces", "plain")
MEMORY_SHARE = 0.9
# As in the examples of Kueue and Topograph; a kubelet may not set labels of kubernetes.io.
RACK = "cloud.provider.com/topology-rack"

# Those of kubernetes.io that a kubelet may set: pkg/kubelet/apis/well_known_labels.go of Kubernetes 1.37
OWN_LABELS = {
    *("kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "node.kubernetes.io/instance-type"),
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
    *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
    *("beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type"),
}
OWN_PREFIX = re.compile(r"([\w.-]+\.)?(kubelet|node)\.kubernetes\.io")
RESERVED = re.compile(r"([\w.-]+\.)?(kubernetes|k8s)\.io")


@dataclass(frozen=True)
class ClusterSpec:
    """The shape of a cluster.

    Attributes:
        nodes: 1 to 100.
        cpus: Cores of each node; None divides the machine's, with at least one each.
        memory: Bytes of each node; None divides the machine's.
        gpus: GPUs that each node declares: shares of the machine's, round robin, or, on a machine without
            GPUs, a number alone. None assigns each real GPU to one node; so does a string, which on a machine
            without GPUs describes simulated ones (`DeclaredGpu.parse`), allocated by a DRA driver.
        labels: Labels of every node.
        racks: Racks that the nodes are divided among, in order; None for no racks.
        port: The API server's port on 127.0.0.1; 0 chooses a free one.
        warm: Keep a process with torch imported, from which training containers start at once.
        mode: ``namespaces``, ``plain``, or ``auto``: namespaces where the machine allows them.
        images: How containers' images are obtained: ``stand-in``, ``pull``, or ``auto``, which pulls
            those that have no preferred stand-in, where a registry answers.
        container_log_max_size: Bytes after which a container's log is rotated.
        container_log_max_files: How many files of a container's log are kept.
        pod_pids_limit: Processes and threads of a pod, where cgroups can be written; 0 for no limit.
        pid_max: Processes and threads of the machine, of which pods have three quarters and a namespace a
            quarter; None for the kernel's limit.
        eviction_hard: Thresholds as a kubelet's: ``memory.available<100Mi,nodefs.available<10%``; empty for
            none, None for those of ``kubelet.resources.pressure``.
        eviction_pressure_transition_period: Seconds for which a node still reports pressure that has passed.
        token_webhook: ``http://127.0.0.1:PORT/PATH``: a server on this machine that authenticates, by
            TokenReview, bearer tokens that the cluster did not issue.
    """

    nodes: int = 4
    cpus: float | None = None
    memory: int | None = None
    gpus: int | str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    racks: int | None = None
    port: int = 0
    warm: bool = True
    mode: str = "auto"
    images: str = AUTO
    container_log_max_size: int = LogLimits.bytes
    container_log_max_files: int = LogLimits.files
    pod_pids_limit: int = PIDS_LIMIT
    pid_max: int | None = None
    eviction_hard: str | None = None
    eviction_pressure_transition_period: float = TRANSITION_SECONDS
    token_webhook: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise LocalClusterError(
                f"a local cluster has 1 to {MAX_NODES} nodes, not {self.nodes}",
                about="nodes",
                fix=f"choose between 1 and {MAX_NODES} nodes; four are enough for the course",
            )
        for name, value in (("cpus", self.cpus), ("memory", self.memory)):
            if value is not None and value <= 0:
                raise LocalClusterError(
                    f"{name} must be more than zero", about=str(value), fix=f"leave --{name} out"
                )
        self._check_limits()
        if isinstance(self.gpus, str):
            DeclaredGpu.parse(self.gpus)
        elif self.gpus is not None and not 0 <= self.gpus <= 64:
            raise LocalClusterError(
                "a node declares 0 to 64 GPUs", about=str(self.gpus), fix="use --gpus 0 to 64"
            )
        if self.token_webhook is not None and not _is_loopback_url(self.token_webhook):
            raise LocalClusterError(
                "the token webhook must be an http URL on 127.0.0.1",
                about=self.token_webhook,
                fix="use --token-webhook http://127.0.0.1:PORT/PATH",
            )
        _check_labels(self.labels)
        for option, choice, choices in (("images", self.images, IMAGE_MODES), ("mode", self.mode, MODES)):
            if choice not in choices:
                raise LocalClusterError(
                    f"{option} must be one of {', '.join(choices)}",
                    about=choice,
                    fix=f"use --{option} {' or '.join(choices)}, or leave it out",
                )

    def _check_limits(self) -> None:
        if self.container_log_max_size < 1 or self.container_log_max_files < 2:
            raise LocalClusterError(
                "a container's log has at least 2 files, of at least one byte",
                about=f"{self.container_log_max_files} files of {self.container_log_max_size} bytes",
                fix="use --container-log-max-size 1 or more and --container-log-max-files 2 or more",
            )
        try:
            parse_thresholds(self.eviction_hard or "")
        except ValueError as error:
            raise LocalClusterError(
                str(error),
                about=self.eviction_hard or "",
                fix="use --eviction-hard 'memory.available<100Mi,nodefs.available<10%', or leave it out",
            ) from error
        if self.pod_pids_limit < 0 or self.eviction_pressure_transition_period < 0:
            raise LocalClusterError(
                "the limit of processes and the transition period must not be negative",
                about=f"{self.pod_pids_limit} processes, {self.eviction_pressure_transition_period} s",
                fix="use 0 or more for --pod-pids-limit and --eviction-pressure-transition-period",
            )
        if self.pid_max is not None and self.pid_max < MIN_PIDS:
            raise LocalClusterError(
                f"a cluster needs at least {MIN_PIDS} processes and threads",
                about=f"{self.pid_max}",
                fix=f"use --pid-max {MIN_PIDS} or more, or leave it out",
            )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"labels": dict(self.labels)}

    def node_settings(self, machine: HostInfo) -> list[NodeSettings]:
        """Divide the machine's resources; real GPUs are assigned to nodes, or shared (`gpus`)."""
        cpus = self.cpus or max(1.0, machine.cores / self.nodes)
        memory = self.memory or int(machine.memory * MEMORY_SHARE / self.nodes)
        settings = []
        for index in range(self.nodes):
            devices, model = self._devices(index, machine), self.gpus if isinstance(self.gpus, str) else ""
            declared = DeclaredGpu.parse(model) if model and not machine.gpus else None
            shown, rack = declared.gpus() if declared else devices, self._rack(index)
            domains = {"node": f"node-{index}", "rack": rack.get(RACK, "rack-a")}
            domain = domains.get(declared.nvlink, "") if declared else ""
            settings.append(
                NodeSettings(
                    name=f"node-{index}",
                    index=index,
                    cpus=cpus,
                    memory=memory,
                    storage=int(machine.disk_free * MEMORY_SHARE / self.nodes),
                    gpus=self.gpus if isinstance(self.gpus, int) else len(shown),
                    gpu_devices=tuple(gpu.uuid for gpu in devices),
                    gpu_model=model,
                    nvlink_domain=domain,
                    labels=gpu_labels(shown, shared=self._shares(machine))
                    | ({"nvidia.com/gpu.clique": f"{domain}.0"} if domain else {})
                    | ({"trainyard/declared-gpus": "true"} if declared else {})
                    | rack
                    | dict(self.labels),
                )
            )
        return settings

    def _rack(self, index: int) -> dict[str, str]:
        if self.racks is None:
            return {}
        if not 1 <= self.racks <= min(self.nodes, len(ascii_lowercase)):
            raise LocalClusterError(
                "a rack has at least one node, and there are 26 at most",
                about=f"{self.racks} racks for {self.nodes} nodes",
                fix=f"use --racks 1 to {min(self.nodes, len(ascii_lowercase))}",
            )
        return {RACK: f"rack-{ascii_lowercase[index * self.racks // self.nodes]}"}

    def _devices(self, index: int, machine: HostInfo) -> list[Gpu]:
        """List the real GPUs of a node, the same one several times where it has several shares of it."""
        if not isinstance(self.gpus, int):
            return list(machine.gpus[index :: self.nodes])
        first = index * self.gpus
        return [
            machine.gpus[share % len(machine.gpus)]
            for share in range(first, first + self.gpus if machine.gpus else first)
        ]

    def _shares(self, machine: HostInfo) -> bool:
        return isinstance(self.gpus, int) and self.gpus * self.nodes > len(machine.gpus)


def _check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that NodeRestriction forbids kubelets to set: node registration would never succeed."""
    for label in labels:
        prefix = label.rpartition("/")[0]
        if RESERVED.fullmatch(prefix) and label not in OWN_LABELS and not OWN_PREFIX.fullmatch(prefix):
            raise LocalClusterError(
                "a kubelet may not set this label: it is one of kubernetes.io or k8s.io",
                about=label,
                fix="choose another, or set it once the cluster runs: kubectl label nodes --all",
            )


def gpu_labels(devices: Sequence[Gpu], *, shared: bool) -> dict[str, str]:
    """Labels as https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery has them."""
    if not devices:
        return {}
    product = re.sub(r"[^A-Za-z0-9]+", "-", devices[0].name)[:56].strip("-")
    count = len({gpu.uuid for gpu in devices})
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": f"{product}-SHARED" if shared else product,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(devices[0].memory >> 20),
        "nvidia.com/gpu.replicas": str(len(devices) // count),
        "nvidia.com/gpu.sharing-strategy": "time-slicing" if shared else "none",
    }


def _is_loopback_url(url: str) -> bool:
    try:
        address = urlsplit(url)
        return (address.scheme, address.hostname) == ("http", "127.0.0.1") and bool(address.port)
    except ValueError:
        return False


def memory_bytes(text: str) -> int:
    """Parse a Kubernetes quantity such as ``2Gi`` into bytes."""
    try:
        return int(parse(text))
    except ValueError as error:
        raise LocalClusterError(
            "not a quantity of memory", about=text, fix="write it like 2Gi or 512Mi"
        ) from error
