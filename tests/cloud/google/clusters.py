"""What methods of the container API share: where clusters are, whether one may change, how that begins."""

from collections.abc import Callable, Iterator

from google.cloud.container_v1 import types

from .api_errors import ApiError, OperationFailure
from .operations import Kind, Operations, conditions, not_found
from .store import Store
from .world import Project, World

ClusterStatus, PoolStatus = types.Cluster.Status, types.NodePool.Status
Key = tuple[str, str, str]  # project, location, cluster


class Clusters:
    """The clusters that there are.

    Attributes:
        on_pool: Told of a pool and its number of machines, whenever that has changed.
    """

    def __init__(self, world: World, store: Store) -> None:
        self.world = world
        self.store = store
        self.clusters: dict[Key, types.Cluster] = {}
        self.operations = Operations(world)
        self.on_pool: Callable[[types.NodePool, int], None] = lambda pool, count: None

    def pools(self, project: str) -> Iterator[tuple[str, types.NodePool]]:
        """Yield every node pool of a project, with its location."""
        for (of, location, _), cluster in self.clusters.items():
            if of == project:
                yield from ((location, each) for each in cluster.node_pools)

    def left(self) -> list[str]:
        """Return the paths of the clusters and node pools that there are."""
        found = []
        for key, cluster in self.clusters.items():
            found += [path_of(key), *(f"{path_of(key)}/nodePools/{each.name}" for each in cluster.node_pools)]
        return found

    def _begin(self, kind, key, target, done, failed=lambda failure: None) -> types.Operation:
        if kind not in (Kind.CREATE_CLUSTER, Kind.DELETE_CLUSTER):
            self.clusters[key].status = ClusterStatus.RECONCILING
        failure = self.world.operation_failure(self.world.calls[-1].method)
        project = self.world.project(key[0])

        def spoilt(failure: OperationFailure) -> None:
            if key in self.clusters and self.clusters[key].status == ClusterStatus.RECONCILING:
                self.clusters[key].status = ClusterStatus.RUNNING
            failed(failure)

        return self.operations.begin(
            kind, project=project, cluster=key, target=target, failure=failure, done=done, failed=spoilt
        )

    def _place(self, parent: str) -> tuple[Project, str]:
        words = parent.split("/")
        if len(words) < 4 or words[0] != "projects":
            raise ApiError("INVALID_ARGUMENT", f"Invalid resource name: {parent!r}.")
        return self.world.project(words[1]), words[3]

    def _key(self, request, name: str = "") -> Key:
        name = name or getattr(request, "name", "") or f"{old(request)}/clusters/{request.cluster_id}"
        project, location = self._place(name)
        return project.id, location, (name.split("/") + ["", ""])[5]

    def _operation(self, request) -> tuple[str, str, str]:
        name = request.name or f"{old(request)}/operations/{request.operation_id}"
        project, location = self._place(name)
        return project.id, location, name.split("/")[-1]

    def _cluster(self, key: Key) -> types.Cluster:
        if key not in self.clusters:
            raise not_found(path_of(key))
        return self.clusters[key]

    def _changing(self, key: Key) -> types.Cluster:
        cluster = self._cluster(key)
        self.operations.refuse_second(key)
        return cluster

    def _pool(self, request, *, changing: bool = False) -> tuple[Key, types.Cluster, types.NodePool]:
        key = self._key(request)
        cluster = self._changing(key) if changing else self._cluster(key)
        name = request.name.split("/")[-1] if request.name else request.node_pool_id
        for pool in cluster.node_pools:
            if pool.name == name:
                return key, cluster, pool
        raise not_found(f"{path_of(key)}/nodePools/{name}")


def spoil(pool: types.NodePool, failure: OperationFailure, status: PoolStatus = PoolStatus.ERROR) -> None:
    """Leave a node pool as a failed operation leaves it: there, in an error."""
    pool.status = status
    pool.status_message = failure.message
    pool.conditions = [conditions(failure)]


def old(request) -> str:
    """Return the place that a request names in its older fields."""
    return f"projects/{request.project_id}/locations/{request.zone}"


def path_of(key: Key) -> str:
    return "projects/{}/locations/{}/clusters/{}".format(*key)
