"""A cluster of the fake's that a real one stands behind: machines of node groups, and the driver of EFS."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moto.efs.models import efs_backends

from ..backing_cluster import BackingCluster
from ..shared_files import SharedFiles
from .faults import ACCOUNT

if TYPE_CHECKING:
    from .server import FakeAws


def nodes_of(backing: BackingCluster) -> Callable[[str, dict[str, Any], int], None]:
    """Return what `FakeAws.backing` wants to be told of node groups."""

    def told(event: str, group: dict[str, Any], count: int) -> None:
        labels = {
            "eks.amazonaws.com/nodegroup": group["nodegroupName"],
            "eks.amazonaws.com/capacityType": group["capacityType"],
            "node.kubernetes.io/instance-type": group["instanceTypes"][0],
            "topology.kubernetes.io/region": group["nodegroupArn"].split(":")[3],
            **group["labels"],
        }
        backing.set(group["nodegroupName"], count, labels, tuple(group.get("taints") or ()))

    return told


def files_of(aws: "FakeAws", backing: BackingCluster, *, region: str) -> SharedFiles:
    """Return the driver of EFS: it makes volumes for classes whose file system can be mounted."""

    def check(parameters: Mapping[str, str]) -> str:
        name = parameters.get("fileSystemId", "")
        reached = any(
            target.file_system_id == name and target.life_cycle_state == "available"
            for target in efs_backends[ACCOUNT][region].mount_targets_by_id.values()
        )
        return "" if reached else f"no node can mount the file system {name!r}"

    folder = backing.kubeconfig.parent / "volumes"
    return SharedFiles(backing.kubeconfig, folder, driver="efs.csi.aws.com", check=check)
