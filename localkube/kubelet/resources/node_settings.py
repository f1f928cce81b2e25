"""The settings of a virtual node, also for code that creates clusters: no API client is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_PODS = 250


@dataclass(frozen=True)
class NodeSettings:
    """One node: ``cpus`` in cores, ``memory`` in bytes.

    ``external_address`` is its address outside the cluster's network, if it has one.
    ``gpu_model`` describes its GPUs (``declared_gpu.py``), which a DRA driver then allocates.
    """

    name: str
    index: int
    cpus: float
    memory: int
    storage: int
    gpus: int = 0
    gpu_devices: tuple[str, ...] = ()
    gpu_model: str = ""
    nvlink_domain: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    external_address: str = ""

    @property
    def address(self) -> str:
        return f"10.244.254.{self.index + 1}"

    @property
    def pods(self) -> str:
        """The common prefix of its pods' addresses."""
        return f"10.244.{self.index + 1}."

    @property
    def zone(self) -> str:
        return f"local-{'abc'[self.index % 3]}"

    @property
    def first_core(self) -> int:
        """The first of the machine's cores for this node, so that nodes use different ones."""
        return int(self.index * self.cpus)

    def allocatable(self) -> dict[str, str]:
        """Compute the node's allocatable resources."""
        quantities = {
            "cpu": f"{round(self.cpus * 1000)}m",
            "memory": f"{self.memory // 1024}Ki",
            "ephemeral-storage": f"{self.storage // 1024}Ki",
            "pods": str(MAX_PODS),
        }
        return quantities | ({"nvidia.com/gpu": str(self.gpus)} if self.gpus and not self.gpu_model else {})

    def capacity(self) -> dict[str, str]:
        """Compute the node's capacity, including a DRA driver's GPUs, which are allocated only by claims."""
        return self.allocatable() | ({"nvidia.com/gpu": str(self.gpus)} if self.gpus else {})
