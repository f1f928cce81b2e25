"""The container API: clusters, node pools, operations, with google-cloud-container's own messages.

A method takes and returns a message; `rpc` serves them over gRPC, `rest` over HTTP. Versions, network ranges
and instance groups are made up, and nothing is upgraded by itself.
"""

import uuid
from collections.abc import Callable, Iterator

from google.cloud.container_v1 import types
from google.protobuf import empty_pb2

from . import machines, quotas
from .operations import Kind, Operations, conditions, not_found, timestamp
from .refusals import ApiError, OperationFailure
from .store import Store
from .world import Project, World

TITLE = "Kubernetes Engine API"
VERSION = "1.36.3-gke.1000000"
OLDER = "1.35.6-gke.1200000"
ClusterStatus, PoolStatus = types.Cluster.Status, types.NodePool.Status
Key = tuple[str, str, str]  # project, location, cluster


class Container:
    """Clusters and what is done to them. Each public method whose name is an RPC's is that RPC.

    Attributes:
        on_pool: Told of a pool and its number of machines, whenever that has changed.
    """

    def __init__(self, world: World, store: Store) -> None:
        self.world = world
        self.store = store
        self.clusters: dict[Key, types.Cluster] = {}
        self.operations = Operations(world)
        self.on_pool: Callable[[types.NodePool, int], None] = lambda pool, count: None

    # Clusters

    def ListClusters(self, request) -> types.ListClustersResponse:
        project, location = self._place(request.parent or _old(request))
        found = [
            types.Cluster(each)
            for (of, where, _), each in self.clusters.items()
            if of == project.id and location in ("-", where)
        ]
        return types.ListClustersResponse(clusters=found)

    def GetCluster(self, request) -> types.Cluster:
        return types.Cluster(self._cluster(self._key(request)))

    def CreateCluster(self, request) -> types.Operation:
        project, location = self._place(request.parent or _old(request))
        cluster = types.Cluster(request.cluster)
        _check_name(cluster.name, "cluster.name", longest=40)
        key = (project.id, location, cluster.name)
        if key in self.clusters:
            raise ApiError(
                "ALREADY_EXISTS", f"Already exists: {_path(key)}.", reason="CLUSTER_ALREADY_EXISTS"
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
        self._check_network(project, location, cluster)
        for pool in cluster.node_pools:
            self._check_pool(project, location, pool)
        self._furnish(cluster, project, location)
        machines.raise_firewall(self.store, project.id, cluster)
        for pool in cluster.node_pools:
            self._furnish_pool(pool, cluster)
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
                _spoil(pool, failure)

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

    # Node pools

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
                f"Already exists: {_path(key)}/nodePools/{pool.name}.",
                reason="NODE_POOL_ALREADY_EXISTS",
            )
        self._check_pool(self.world.project(key[0]), key[1], pool)
        self._furnish_pool(pool, cluster)
        cluster.node_pools.append(pool)
        pool = cluster.node_pools[-1]
        machines.raise_pool(self.store, key[0], cluster, pool)

        def done() -> None:
            pool.status = PoolStatus.RUNNING
            cluster.status = ClusterStatus.RUNNING
            self.on_pool(pool, machines.size(self.store, pool))

        def failed(failure: OperationFailure) -> None:
            _spoil(pool, failure)
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
            Kind.DELETE_NODE_POOL, key, target, done, lambda failure: _spoil(pool, failure, PoolStatus.ERROR)
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
            lambda failure: _spoil(pool, failure, PoolStatus.RUNNING_WITH_ERROR),
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

    # Operations and what is on offer

    def ListOperations(self, request) -> types.ListOperationsResponse:
        project, location = self._place(request.parent or _old(request))
        return types.ListOperationsResponse(operations=self.operations.list(project.id, location))

    def GetOperation(self, request) -> types.Operation:
        return self.operations.get(*self._operation(request))

    def CancelOperation(self, request) -> empty_pb2.Empty:
        self.operations.cancel(*self._operation(request))
        return empty_pb2.Empty()

    def GetServerConfig(self, request) -> types.ServerConfig:
        self._place(request.name or _old(request))
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

    # Shared by the methods

    def pools(self, project: str) -> Iterator[tuple[str, types.NodePool]]:
        """Yield every node pool of a project, with its location."""
        for (of, location, _), cluster in self.clusters.items():
            if of == project:
                yield from ((location, each) for each in cluster.node_pools)

    def left(self) -> list[str]:
        """Return the paths of the clusters and node pools that there are."""
        found = []
        for key, cluster in self.clusters.items():
            found += [_path(key), *(f"{_path(key)}/nodePools/{each.name}" for each in cluster.node_pools)]
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

    def _change_pool(self, request, kind, **fields) -> types.Operation:
        key, cluster, pool = self._pool(request, changing=True)

        def done() -> None:
            for field, value in fields.items():
                setattr(pool, field, value)
            cluster.status = ClusterStatus.RUNNING

        return self._begin(kind, key, f"clusters/{key[2]}/nodePools/{pool.name}", done)

    def _place(self, parent: str) -> tuple[Project, str]:
        words = parent.split("/")
        if len(words) < 4 or words[0] != "projects":
            raise ApiError("INVALID_ARGUMENT", f"Invalid resource name: {parent!r}.")
        return self.world.project(words[1]), words[3]

    def _key(self, request, name: str = "") -> Key:
        name = name or getattr(request, "name", "") or f"{_old(request)}/clusters/{request.cluster_id}"
        project, location = self._place(name)
        return project.id, location, (name.split("/") + ["", ""])[5]

    def _operation(self, request) -> tuple[str, str, str]:
        name = request.name or f"{_old(request)}/operations/{request.operation_id}"
        project, location = self._place(name)
        return project.id, location, name.split("/")[-1]

    def _cluster(self, key: Key) -> types.Cluster:
        if key not in self.clusters:
            raise not_found(_path(key))
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
        raise not_found(f"{_path(key)}/nodePools/{name}")

    def _check_network(self, project: Project, location: str, cluster: types.Cluster) -> None:
        """Refuse a cluster in a network, or as an account, that is not there."""
        places = (
            ("Network", cluster.network, "global/networks"),
            ("Subnetwork", cluster.subnetwork, f"regions/{quotas.region_of(location)}/subnetworks"),
        )
        for kind, name, place in places:
            name = name.rsplit("/", 1)[-1] or "default"
            if not self.store.has("compute", f"projects/{project.id}/{place}/{name}"):
                raise ApiError("INVALID_ARGUMENT", f'{kind} "{name}" does not exist.')

    def _check_pool(self, project: Project, location: str, pool: types.NodePool) -> None:
        account = pool.config.service_account
        ours = account.endswith(f"@{project.id}.iam.gserviceaccount.com")
        if ours and not self.store.has("iam", f"projects/{project.id}/serviceAccounts/{account}"):
            raise ApiError("INVALID_ARGUMENT", f'Service account "{account}" does not exist.')
        _check_name(pool.name, "node_pool.name", longest=40)
        quotas.check(self, project, location, pool, pool.initial_node_count)

    def _furnish(self, cluster: types.Cluster, project: Project, location: str) -> None:
        places = "zones" if location.count("-") == 2 else "locations"
        cluster.zone = cluster.location = location
        cluster.locations = list(cluster.locations) or [location]
        cluster.status = ClusterStatus.PROVISIONING
        cluster.id = uuid.uuid4().hex * 2
        cluster.etag = uuid.uuid4().hex[:8]
        cluster.label_fingerprint = uuid.uuid4().hex[:8]
        cluster.create_time = timestamp(self.world.clock.now)
        cluster.network = cluster.network or "default"
        cluster.subnetwork = cluster.subnetwork or "default"
        version = cluster.initial_cluster_version
        cluster.initial_cluster_version = VERSION if version in ("", "-", "latest") else version
        cluster.current_master_version = cluster.current_node_version = cluster.initial_cluster_version
        cluster.endpoint = self.world.endpoint
        cluster.master_auth.cluster_ca_certificate = self.world.ca
        cluster.self_link = f"https://container.googleapis.com/v1/projects/{project.id}/{places}/{location}/clusters/{cluster.name}"

    def _furnish_pool(self, pool: types.NodePool, cluster: types.Cluster) -> None:
        pool.status = PoolStatus.PROVISIONING
        pool.version = pool.version or cluster.current_master_version
        pool.locations = list(pool.locations) or list(cluster.locations)
        pool.config.machine_type = pool.config.machine_type or "e2-medium"
        pool.config.disk_size_gb = pool.config.disk_size_gb or 100
        pool.config.image_type = pool.config.image_type or "COS_CONTAINERD"
        pool.etag = uuid.uuid4().hex[:8]
        pool.self_link = f"{cluster.self_link}/nodePools/{pool.name}"


def _spoil(pool: types.NodePool, failure: OperationFailure, status: PoolStatus = PoolStatus.ERROR) -> None:
    """Leave a node pool as a failed operation leaves it: there, in an error."""
    pool.status = status
    pool.status_message = failure.message
    pool.conditions = [conditions(failure)]


def _old(request) -> str:
    """Return the place that a request names in its older fields."""
    return f"projects/{request.project_id}/locations/{request.zone}"


def _path(key: Key) -> str:
    return "projects/{}/locations/{}/clusters/{}".format(*key)


def _check_name(name: str, field: str, *, longest: int) -> None:
    plain = name.replace("-", "")
    if (
        not name
        or len(name) > longest
        or not plain.isascii()
        or not plain.isalnum()
        or name != name.lower()
        or not name[0].isalpha()
        or name[-1] == "-"
    ):
        raise ApiError(
            "INVALID_ARGUMENT",
            f'Invalid value for field "{field}": "{name}". Must be a match of regex '
            f"'(?:[a-z](?:[-a-z0-9]{{0,{longest - 2}}}[a-z0-9])?)'",
        )
