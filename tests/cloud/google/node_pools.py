"""Node pools, as the container API has them: their machines are in `machines`."""

from google.cloud.container_v1 import types

from . import machines, quotas
from .api_errors import ApiError, OperationFailure
from .clusters import Clusters, ClusterStatus, PoolStatus, path_of, spoil
from .defaults import check_pool, set_pool_defaults
from .operations import Kind


class NodePools(Clusters):
    """The methods of node pools. Each whose name is an RPC's is that RPC."""

    def ListNodePools(self, request) -> types.ListNodePoolsResponse:
        cluster = self._cluster(self._key(request, request.parent))
        return types.ListNodePoolsResponse(node_pools=[types.NodePool(each) for each in cluster.node_pools])

    def GetNodePool(self, request) -> types.NodePool:
        return types.NodePool(self._pool(request)[2])

    def CreateNodePool(self, request) -> types.Operation:
        key = self._key(request, request.parent)
        cluster = self._changing(key)
        pool = types.NodePool(request.node_pool)
        if any(each.name == pool.name for each in cluster.node_pools):
            raise ApiError(
                "ALREADY_EXISTS",
                f"Already exists: {path_of(key)}/nodePools/{pool.name}.",
                reason="NODE_POOL_ALREADY_EXISTS",
            )
        check_pool(self, self.world.project(key[0]), key[1], pool)
        set_pool_defaults(pool, cluster)
        cluster.node_pools.append(pool)
        pool = cluster.node_pools[-1]
        machines.raise_pool(self.store, key[0], cluster, pool)

        def done() -> None:
            pool.status = PoolStatus.RUNNING
            cluster.status = ClusterStatus.RUNNING
            self.on_pool(pool, machines.size(self.store, pool))

        def failed(failure: OperationFailure) -> None:
            spoil(pool, failure)
            cluster.status = ClusterStatus.RUNNING

        target = f"clusters/{key[2]}/nodePools/{pool.name}"
        return self._begin(Kind.CREATE_NODE_POOL, key, target, done, failed)

    def DeleteNodePool(self, request) -> types.Operation:
        key, cluster, pool = self._pool(request, changing=True)
        pool.status = PoolStatus.STOPPING

        def done() -> None:
            self.on_pool(pool, 0)
            machines.raze_pool(self.store, pool)
            left = [each for each in cluster.node_pools if each.name != pool.name]
            cluster.node_pools = left
            cluster.status = ClusterStatus.RUNNING

        target = f"clusters/{key[2]}/nodePools/{pool.name}"
        return self._begin(
            Kind.DELETE_NODE_POOL, key, target, done, lambda failure: spoil(pool, failure, PoolStatus.ERROR)
        )

    def SetNodePoolSize(self, request) -> types.Operation:
        key, cluster, pool = self._pool(request, changing=True)
        more = request.node_count - machines.size(self.store, pool)
        if more > 0:
            quotas.check(self, self.world.project(key[0]), key[1], pool, more)
        pool.status = PoolStatus.RECONCILING

        def done() -> None:
            machines.resize(self.store, pool, request.node_count)
            self.on_pool(pool, request.node_count)
            pool.status = PoolStatus.RUNNING
            cluster.status = ClusterStatus.RUNNING

        return self._begin(
            Kind.SET_NODE_POOL_SIZE,
            key,
            f"clusters/{key[2]}/nodePools/{pool.name}",
            done,
            lambda failure: spoil(pool, failure, PoolStatus.RUNNING_WITH_ERROR),
        )

    def SetNodePoolAutoscaling(self, request) -> types.Operation:
        return self._change_pool(request, Kind.UPDATE_CLUSTER, autoscaling=request.autoscaling)

    def SetNodePoolManagement(self, request) -> types.Operation:
        return self._change_pool(request, Kind.SET_NODE_POOL_MANAGEMENT, management=request.management)

    def UpdateNodePool(self, request) -> types.Operation:
        key, cluster, pool = self._pool(request, changing=True)

        def done() -> None:
            if "labels" in request:
                pool.config.labels = dict(request.labels.labels)
            if "taints" in request:
                pool.config.taints = list(request.taints.taints)
            if "resource_labels" in request:
                pool.config.resource_labels = dict(request.resource_labels.labels)
            pool.version = request.node_version or pool.version
            pool.status = PoolStatus.RUNNING
            cluster.status = ClusterStatus.RUNNING

        return self._begin(Kind.UPGRADE_NODES, key, f"clusters/{key[2]}/nodePools/{pool.name}", done)

    def _change_pool(self, request, kind, **fields) -> types.Operation:
        key, cluster, pool = self._pool(request, changing=True)

        def done() -> None:
            for field, value in fields.items():
                setattr(pool, field, value)
            cluster.status = ClusterStatus.RUNNING

        return self._begin(kind, key, f"clusters/{key[2]}/nodePools/{pool.name}", done)
