"""Node pools of a cluster that a real one stands behind: its machines, labelled as GKE does it."""

from collections.abc import Callable

from google.cloud.container_v1 import types

from ..backing_cluster import BackingCluster
from .quotas import region_of

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}


def nodes_of(backing: BackingCluster) -> Callable[[types.NodePool, int], None]:
    """Return what `FakeGoogle.backing` wants to be told of node pools."""

    def told(pool: types.NodePool, count: int) -> None:
        backing.set(pool.name, count, labels_of(pool), taints_of(pool))

    return told


def labels_of(pool: types.NodePool) -> dict[str, str]:
    """Return the labels of a pool's nodes."""
    zone = pool.locations[0]
    labels = {
        "cloud.google.com/gke-nodepool": pool.name,
        "cloud.google.com/machine-family": pool.config.machine_type.split("-")[0],
        "node.kubernetes.io/instance-type": pool.config.machine_type,
        "topology.kubernetes.io/region": region_of(zone),
        "topology.kubernetes.io/zone": zone,
        **pool.config.labels,
    }
    if pool.config.spot:
        labels["cloud.google.com/gke-spot"] = "true"
    for each in pool.config.accelerators:
        labels["cloud.google.com/gke-accelerator"] = each.accelerator_type
    return labels


def taints_of(pool: types.NodePool) -> tuple[dict[str, str], ...]:
    """Return the taints of a pool's nodes: GKE adds one to those with GPUs."""
    taints = [
        {"key": each.key, "value": each.value, "effect": each.effect.name} for each in pool.config.taints
    ]
    return (*taints, *([GPU_TAINT] if pool.config.accelerators else []))
