"""Node groups of a cluster that a real one stands behind: their machines are that one's."""

from collections.abc import Callable
from typing import Any

from ..backing import Backing


def nodes_of(backing: Backing) -> Callable[[str, dict[str, Any], int], None]:
    """Return what `FakeAmazon.backing` wants to be told of node groups."""

    def told(event: str, group: dict[str, Any], count: int) -> None:
        labels = {
            "eks.amazonaws.com/nodegroup": group["nodegroupName"],
            "eks.amazonaws.com/capacityType": group["capacityType"],
            "node.kubernetes.io/instance-type": group["instanceTypes"][0],
            "topology.kubernetes.io/region": group["nodegroupArn"].split(":")[3],
            **group["labels"],
        }
        backing.set(group["nodegroupName"], count, labels, tuple(group["taints"]))

    return told
