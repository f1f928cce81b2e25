"""The container API: clusters and operations, with google-cloud-container's own messages.

A method takes and returns a message; `rpc` serves them over gRPC, `container_rest` over HTTP. Nothing is
upgraded by itself. Node pools are in `node_pools`.
"""

import uuid

from google.cloud.container_v1 import types
from google.protobuf import empty_pb2

from . import labels, machines
from .api_errors import ApiError, OperationFailure
from .clusters import ClusterStatus, PoolStatus, old, path_of, spoil
from .defaults import (
    OLDER,
    VERSION,
    check_name,
    check_network,
    check_pool,
    set_cluster_defaults,
    set_pool_defaults,
)
from .node_pools import NodePools
from .operations import Kind, conditions

TITLE = "Kubernetes Engine API"


class Container(NodePools):
    """The container API. Each public method whose name is an RPC's is that RPC."""

    def ListClusters(self, request) -> types.ListClustersResponse:
        project, location = self._place(request.parent or old(request))
        found = [
            types.Cluster(each)
            for (of, where, _), each in self.clusters.items()
            if of == project.id and location in ("-", where)
        ]
        return types.ListClustersResponse(clusters=found)

    def GetCluster(self, request) -> types.Cluster:
        return types.Cluster(self._cluster(self._key(request)))

    def CreateCluster(self, request) -> types.Operation:
        project, location = self._place(request.parent or old(request))
        cluster = types.Cluster(request.cluster)
        check_name(cluster.name, "cluster.name", longest=40)
        key = (project.id, location, cluster.name)
        if key in self.clusters:
            raise ApiError(
                "ALREADY_EXISTS", f"Already exists: {path_of(key)}.", reason="CLUSTER_ALREADY_EXISTS"
            )
        if cluster.node_pools and (cluster.initial_node_count or request.cluster.node_config):
            raise ApiError(
                "INVALID_ARGUMENT",
                "Only one of cluster.initial_node_count and cluster.node_pools can be specified.",
            )
        if not cluster.node_pools and not cluster.initial_node_count and not cluster.autopilot.enabled:
            raise ApiError("INVALID_ARGUMENT", "Cluster.initial_node_count must be greater than zero.")
        if not cluster.node_pools:
            pool = types.NodePool(
                name="default-pool", initial_node_count=cluster.initial_node_count, config=cluster.node_config
            )
            cluster.node_pools = [pool]
        check_network(self, project, location, cluster)
        labels.check(cluster.resource_labels, "cluster.resource_labels")
        for pool in cluster.node_pools:
            check_pool(self, project, location, pool)
        set_cluster_defaults(self, cluster, project, location)
        machines.raise_firewall(self.store, project.id, cluster)
        for pool in cluster.node_pools:
            set_pool_defaults(pool, cluster)
            machines.raise_pool(self.store, project.id, cluster, pool)
        self.clusters[key] = cluster

        def done() -> None:
            cluster.status = ClusterStatus.RUNNING
            for pool in cluster.node_pools:
                pool.status = PoolStatus.RUNNING
                self.on_pool(pool, machines.size(self.store, pool))

        def failed(failure: OperationFailure) -> None:
            cluster.status = ClusterStatus.ERROR
            cluster.status_message = failure.message
            cluster.conditions = [conditions(failure)]
            for pool in cluster.node_pools:
                spoil(pool, failure)

        return self._begin(Kind.CREATE_CLUSTER, key, f"clusters/{cluster.name}", done, failed)

    def DeleteCluster(self, request) -> types.Operation:
        key = self._key(request)
        cluster = self._changing(key)
        before = cluster.status
        cluster.status = ClusterStatus.STOPPING

        def done() -> None:
            for pool in cluster.node_pools:
                self.on_pool(pool, 0)
                machines.raze_pool(self.store, pool)
            machines.raze_firewall(self.store, key[0], cluster)
            self.clusters.pop(key, None)

        def failed(failure: OperationFailure) -> None:
            cluster.status = ClusterStatus.ERROR if before == ClusterStatus.ERROR else ClusterStatus.DEGRADED
            cluster.status_message = failure.message

        return self._begin(Kind.DELETE_CLUSTER, key, f"clusters/{key[2]}", done, failed)

    def SetLabels(self, request) -> types.Operation:
        key = self._key(request)
        cluster = self._changing(key)
        if request.label_fingerprint != cluster.label_fingerprint:
            raise ApiError("FAILED_PRECONDITION", "Labels could not be set due to fingerprint mismatch.")
        labels.check(request.resource_labels, "resource_labels")

        def done() -> None:
            cluster.resource_labels = dict(request.resource_labels)
            cluster.label_fingerprint = uuid.uuid4().hex[:8]
            cluster.status = ClusterStatus.RUNNING

        return self._begin(Kind.SET_LABELS, key, f"clusters/{key[2]}", done)

    def SetAddonsConfig(self, request) -> types.Operation:
        key = self._key(request)
        cluster = self._changing(key)

        def done() -> None:
            types.AddonsConfig.pb(cluster.addons_config).MergeFrom(
                types.AddonsConfig.pb(request.addons_config)
            )
            cluster.status = ClusterStatus.RUNNING

        return self._begin(Kind.UPDATE_CLUSTER, key, f"clusters/{key[2]}", done)

    def UpdateCluster(self, request) -> types.Operation:
        key = self._key(request)
        cluster = self._changing(key)
        update = request.update

        def done() -> None:
            cluster.status = ClusterStatus.RUNNING
            if "desired_addons_config" in update:
                addons = types.AddonsConfig.pb(cluster.addons_config)
                addons.MergeFrom(types.AddonsConfig.pb(update.desired_addons_config))
            for field in (
                "workload_identity_config",
                "logging_config",
                "monitoring_config",
                "release_channel",
            ):
                if f"desired_{field}" in update:
                    setattr(cluster, field, getattr(update, f"desired_{field}"))

        return self._begin(Kind.UPDATE_CLUSTER, key, f"clusters/{key[2]}", done)

    def ListOperations(self, request) -> types.ListOperationsResponse:
        project, location = self._place(request.parent or old(request))
        return types.ListOperationsResponse(operations=self.operations.list(project.id, location))

    def GetOperation(self, request) -> types.Operation:
        return self.operations.get(*self._operation(request))

    def CancelOperation(self, request) -> empty_pb2.Empty:
        self.operations.cancel(*self._operation(request))
        return empty_pb2.Empty()

    def GetServerConfig(self, request) -> types.ServerConfig:
        self._place(request.name or old(request))
        channel = types.ReleaseChannel.Channel
        return types.ServerConfig(
            default_cluster_version=VERSION,
            valid_master_versions=[VERSION, OLDER],
            valid_node_versions=[VERSION, OLDER],
            default_image_type="COS_CONTAINERD",
            valid_image_types=["COS_CONTAINERD", "UBUNTU_CONTAINERD"],
            channels=[
                types.ServerConfig.ReleaseChannelConfig(
                    channel=each, default_version=VERSION, valid_versions=[VERSION, OLDER]
                )
                for each in (channel.RAPID, channel.REGULAR, channel.STABLE)
            ],
        )
