"""What a real cluster behind the fake's takes from it: the machines of node pools, and the valid tokens.

Google's tokens are opaque, so a fake has a list. Who may do all in the project may do all in its clusters;
others have the rights that the cluster gives them
(https://cloud.google.com/kubernetes-engine/docs/how-to/role-based-access-control).
"""

from collections.abc import Callable

from google.cloud.container_v1 import types

from ..backing_cluster import BackingCluster
from ..tokens import BadToken, User, review

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
OWNER = "owner@example.com"


def nodes_of(backing: BackingCluster) -> Callable[[types.NodePool, int], None]:
    """Build what `FakeGoogle.backing` calls with each node pool and its number of machines."""

    def told(pool: types.NodePool, count: int) -> None:
        taints = (GPU_TAINT,) if pool.config.accelerators else ()  # as GKE has them on nodes with GPUs
        backing.set(pool.name, count, _labels(pool), taints)

    return told


def _labels(pool: types.NodePool) -> dict[str, str]:
    zone = pool.locations[0]
    labels = {
        "cloud.google.com/gke-nodepool": pool.name,
        "cloud.google.com/machine-family": pool.config.machine_type.partition("-")[0],
        "node.kubernetes.io/instance-type": pool.config.machine_type,
        "topology.kubernetes.io/region": zone.rpartition("-")[0],
        "topology.kubernetes.io/zone": zone,
        **pool.config.labels,
    }
    if pool.config.spot:
        labels["cloud.google.com/gke-spot"] = "true"
    for accelerator in pool.config.accelerators:
        labels["cloud.google.com/gke-accelerator"] = accelerator.accelerator_type
    return labels


class Identities:
    """The valid tokens."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}

    def add(self, token: str, email: str = OWNER, *, admin: bool = True) -> str:
        """Make a token somebody's, and return it."""
        groups = ("system:masters",) if admin else ()
        self._users[token] = User(email, groups, extra={"iam.gke.io/user-assertion": [email]})
        return token

    def answer(self, body: bytes) -> bytes:
        """Answer an API server's TokenReview."""
        return review(body, self._authenticate)

    def _authenticate(self, token: str) -> User:
        if token not in self._users:
            raise BadToken("the token is not one of Google's")
        return self._users[token]
