"""The container API: clusters, node pools and operations, with google-cloud-container's own messages.

A method takes and returns a message; `Rest` has them over HTTP, as the client's own REST transport asks.
A cluster does one operation at a time. What the API does not tell is the size of a pool: `sizes`.
"""

import itertools
import json
import re
import uuid
from collections.abc import Callable

from google.cloud.container_v1 import types
from google.protobuf import json_format
from google.rpc import code_pb2, status_pb2

from . import iam
from .api_errors import ApiError, OperationFailure
from .rest import Request, Rest
from .store import check_labels

TITLE = "Kubernetes Engine API"
Kind = types.Operation.Type
ClusterStatus, PoolStatus = types.Cluster.Status, types.NodePool.Status
OperationStatus = types.Operation.Status
Key = tuple[str, str, str]  # project, zone, cluster
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
_DOING = {Kind.CREATE_CLUSTER: "creating", Kind.DELETE_CLUSTER: "deleting"}
METHODS = {
    "ListClusters": "clusters.list",
    "GetCluster": "clusters.get",
    "CreateCluster": "clusters.create",
    "DeleteCluster": "clusters.delete",
    "SetLabels": "clusters.setResourceLabels",
    "SetMaintenancePolicy": "clusters.setMaintenancePolicy",
    "GetNodePool": "clusters.nodePools.get",
    "CreateNodePool": "clusters.nodePools.create",
    "DeleteNodePool": "clusters.nodePools.delete",
    "SetNodePoolSize": "clusters.nodePools.setSize",
    "SetNodePoolAutoscaling": "clusters.nodePools.setAutoscaling",
    "ListOperations": "operations.list",
    "GetOperation": "operations.get",
}
HYPERDISK_ONLY = ("c4", "n4")  # https://cloud.google.com/compute/docs/disks#machine-type-support


class Container:
    """The container API. Each public method whose name is an RPC's is that RPC.

    Attributes:
        sizes: The number of machines of each pool, by its link.
        on_pool: Called with a pool and its number of machines, whenever that has changed.
    """

    def __init__(self, rest: Rest) -> None:
        self.rest, self.world, self.store = rest, rest.world, rest.store
        self.clusters: dict[Key, types.Cluster] = self.world.clusters
        self.sizes: dict[str, int] = {}
        self.on_pool: Callable[[types.NodePool, int], None] = lambda pool, count: None
        self._operations: dict[str, tuple[Key, types.Operation]] = {}
        self._numbers = itertools.count(1)
        for rpc, path in METHODS.items():
            method = f"container.projects.locations.{path}"
            rest.specials[method], rest.names[method] = self._over_http(rpc), f"container.{rpc}"

    # Clusters

    def ListClusters(self, request) -> types.ListClustersResponse:
        return types.ListClustersResponse(clusters=list(self.clusters.values()))

    def GetCluster(self, request) -> types.Cluster:
        return self._cluster(request.name)

    def CreateCluster(self, request) -> types.Operation:
        cluster = types.Cluster(request.cluster)
        key = _key(f"{request.parent}/clusters/{cluster.name}")
        if key in self.clusters:
            raise ApiError("ALREADY_EXISTS", f"Already exists: {_path(key)}.", "CLUSTER_ALREADY_EXISTS")
        _check_name(cluster.name, "cluster.name")
        check_labels(cluster.resource_labels, "cluster.resource_labels")
        self._check_network(cluster, key[1])
        if not cluster.node_pools:
            pool_size = {"initial_node_count": cluster.initial_node_count}
            cluster.node_pools = [types.NodePool(name="default-pool", **pool_size)]
        cluster.location, cluster.locations = key[1], [key[1]]
        cluster.label_fingerprint, cluster.current_master_version = uuid.uuid4().hex[:8], "1.36.3-gke.1000000"
        cluster.maintenance_policy.resource_version = "e3b0c442"
        cluster.endpoint = self.world.endpoint
        cluster.master_auth.cluster_ca_certificate = self.world.ca
        cluster.self_link = f"https://container.googleapis.com/v1/{_path(key)}"
        cluster.status = ClusterStatus.PROVISIONING
        for pool in cluster.node_pools:
            self._add_pool(cluster, pool)
        self.clusters[key] = cluster

        def done() -> None:
            cluster.status = ClusterStatus.RUNNING
            for pool in cluster.node_pools:
                self._run(pool)

        def failed(failure: OperationFailure) -> None:
            cluster.status, cluster.status_message = ClusterStatus.ERROR, failure.message
            cluster.conditions = [_condition(failure)]
            for pool in cluster.node_pools:
                _spoil(pool, failure)

        return self._begin(Kind.CREATE_CLUSTER, key, "", done, failed)

    def DeleteCluster(self, request) -> types.Operation:
        key, cluster = self._changing(request.name)
        before, cluster.status = cluster.status, ClusterStatus.STOPPING

        def done() -> None:
            for pool in cluster.node_pools:
                self.on_pool(pool, 0)
            del self.clusters[key]

        def failed(failure: OperationFailure) -> None:
            cluster.status_message, cluster.status = failure.message, ClusterStatus.DEGRADED
            if before == ClusterStatus.ERROR:
                cluster.status = before

        return self._begin(Kind.DELETE_CLUSTER, key, "", done, failed)

    def SetLabels(self, request) -> types.Operation:
        key, cluster = self._changing(request.name)
        if request.label_fingerprint != cluster.label_fingerprint:
            raise ApiError("FAILED_PRECONDITION", "Labels could not be set due to fingerprint mismatch.")
        check_labels(request.resource_labels, "resource_labels")

        def done() -> None:
            cluster.resource_labels = dict(request.resource_labels)
            cluster.label_fingerprint = uuid.uuid4().hex[:8]

        return self._begin(Kind.SET_LABELS, key, "", done)

    def SetMaintenancePolicy(self, request) -> types.Operation:
        key, cluster = self._changing(request.name)
        policy = request.maintenance_policy
        if policy.resource_version != cluster.maintenance_policy.resource_version:
            raise ApiError("FAILED_PRECONDITION", "The maintenance policy has changed; read it again.")

        def done() -> None:
            cluster.maintenance_policy = policy
            cluster.maintenance_policy.resource_version = uuid.uuid4().hex[:8]

        return self._begin(Kind.SET_MAINTENANCE_POLICY, key, "", done)

    def maintain(self, seconds: float) -> None:
        """Have Google upgrade each idle cluster for so long, unless its maintenance policy excludes it."""
        for key, cluster in self.clusters.items():
            exclusions = cluster.maintenance_policy.window.maintenance_exclusions.values()
            excluded = any(span.start_time <= self.world.clock.date() < span.end_time for span in exclusions)
            if cluster.status == ClusterStatus.RUNNING and not excluded:
                self._begin(Kind.UPGRADE_MASTER, key, "", lambda: None, seconds=seconds)

    # Node pools

    def GetNodePool(self, request) -> types.NodePool:
        return self._pool(request.name)

    def CreateNodePool(self, request) -> types.Operation:
        key, cluster = self._changing(request.parent)
        name = request.node_pool.name
        if any(pool.name == name for pool in cluster.node_pools):
            words = f"Already exists: {_path(key)}/nodePools/{name}."
            raise ApiError("ALREADY_EXISTS", words, "NODE_POOL_ALREADY_EXISTS")
        self._add_pool(cluster, request.node_pool)
        cluster.node_pools.append(request.node_pool)
        pool = cluster.node_pools[-1]
        failed = lambda failure: _spoil(pool, failure)  # noqa: E731
        return self._begin(Kind.CREATE_NODE_POOL, key, f"/nodePools/{name}", lambda: self._run(pool), failed)

    def DeleteNodePool(self, request) -> types.Operation:
        key, cluster = self._changing(request.name)
        pool = self._pool(request.name)
        pool.status = PoolStatus.STOPPING

        def done() -> None:
            self.on_pool(pool, 0)
            cluster.node_pools = [item for item in cluster.node_pools if item.name != pool.name]

        target = f"/nodePools/{pool.name}"
        return self._begin(Kind.DELETE_NODE_POOL, key, target, done, lambda failure: _spoil(pool, failure))

    def SetNodePoolSize(self, request) -> types.Operation:
        key, _ = self._changing(request.name)
        pool = self._pool(request.name)
        pool.status = PoolStatus.RECONCILING

        def done() -> None:
            self.sizes[pool.self_link] = request.node_count
            self._run(pool)

        failed = lambda failure: _spoil(pool, failure, PoolStatus.RUNNING_WITH_ERROR)  # noqa: E731
        return self._begin(Kind.SET_NODE_POOL_SIZE, key, f"/nodePools/{pool.name}", done, failed)

    def SetNodePoolAutoscaling(self, request) -> types.Operation:
        key, _ = self._changing(request.name)
        pool = self._pool(request.name)

        done = lambda: setattr(pool, "autoscaling", request.autoscaling)  # noqa: E731
        return self._begin(Kind.UPDATE_CLUSTER, key, f"/nodePools/{pool.name}", done)

    # Operations

    def ListOperations(self, request) -> types.ListOperationsResponse:
        return types.ListOperationsResponse(operations=[shown for _, shown in self._operations.values()])

    def GetOperation(self, request) -> types.Operation:
        if (name := request.name.rpartition("/")[2]) not in self._operations:
            raise _not_found(request.name)
        return self._operations[name][1]

    def _begin(
        self,
        kind: Kind,
        key: Key,
        target: str,
        done: Callable[[], None],
        failed: Callable[[OperationFailure], None] = lambda failure: None,
        seconds: float | None = None,
    ) -> types.Operation:
        world, cluster = self.world, self.clusters[key]
        if kind not in _DOING:
            cluster.status = ClusterStatus.RECONCILING
        failure = world.operation_failure(world.calls[-1].method) if seconds is None else None
        shown = types.Operation(
            name=f"operation-{int(world.clock.date().timestamp() * 1000)}-{next(self._numbers):08x}",
            location=key[1],
            operation_type=kind,
            status=OperationStatus.PENDING,
            target_link=f"https://container.googleapis.com/v1/{_path(key)}{target}",
        )
        self._operations[shown.name] = key, shown

        def end() -> None:
            shown.status = OperationStatus.DONE
            if cluster.status == ClusterStatus.RECONCILING:
                cluster.status = ClusterStatus.RUNNING
            if failure is None:
                done()
                return
            code = code_pb2.Code.Value(failure.code)
            shown.error = status_pb2.Status(code=code, message=failure.message)
            shown.status_message = failure.message
            field = "nodepool_conditions" if "nodePools" in target else "cluster_conditions"
            setattr(shown, field, [_condition(failure)])
            failed(failure)

        delay = world.delays.get(kind.name, world.delays["container"]) if seconds is None else seconds
        run = lambda: setattr(shown, "status", OperationStatus.RUNNING)  # noqa: E731
        world.clock.after(min(world.delays["start"], delay), run)
        world.clock.after(delay, end)
        return types.Operation(shown)

    def _over_http(self, rpc: str):
        def call(rest: Rest, request: Request) -> dict:
            form = getattr(types, f"{rpc}Request")
            path = re.sub(r":\w+$", "", request.path)  # …/nodePools/training:setSize
            target = (
                {"parent": path.rpartition("/")[0]} if request.verb in ("create", "list") else {"name": path}
            )
            answer = getattr(self, rpc)(form.from_json(json.dumps(request.body | target)))
            return json_format.MessageToDict(type(answer).pb(answer))

        return call

    # What is there, and what may be

    def _cluster(self, name: str) -> types.Cluster:
        key = _key(name)
        self.world.project(key[0])
        if key not in self.clusters:
            raise _not_found(_path(key))
        return self.clusters[key]

    def _changing(self, name: str) -> tuple[Key, types.Cluster]:
        """Find a cluster that is to change; it must be at nothing else."""
        key, cluster = _key(name), self._cluster(name)
        for of, shown in self._operations.values():
            if of == key and shown.status != OperationStatus.DONE:
                doing = _DOING.get(shown.operation_type, "upgrading")
                words = f"Operation {shown.name} is currently {doing} cluster {key[2]}. "
                words += "Please wait and try again once it is done."
                raise ApiError("FAILED_PRECONDITION", words, "CLUSTER_ALREADY_HAS_OPERATION")
        return key, cluster

    def _pool(self, name: str) -> types.NodePool:
        for pool in self._cluster(name).node_pools:
            if pool.name == name.rpartition("/")[2]:
                return pool
        raise _not_found(name)

    def _check_network(self, cluster: types.Cluster, zone: str) -> None:
        cluster.network, cluster.subnetwork = cluster.network or "default", cluster.subnetwork or "default"
        root, region = f"projects/{self.world.the_project.id}", zone.rpartition("-")[0]
        for kind, name, place in (
            ("Network", cluster.network, "global/networks"),
            ("Subnetwork", cluster.subnetwork, f"regions/{region}/subnetworks"),
        ):
            if not self.store.has("compute", f"{root}/{place}/{name.rpartition('/')[2]}"):
                raise ApiError("INVALID_ARGUMENT", f'{kind} "{name}" does not exist.')

    def _add_pool(self, cluster: types.Cluster, pool: types.NodePool) -> None:
        """Check a new node pool, and set what the service does."""
        _check_name(pool.name, "node_pool.name")
        config = pool.config
        config.machine_type, config.disk_size_gb = (
            config.machine_type or "e2-medium",
            config.disk_size_gb or 100,
        )
        check_labels(config.resource_labels, "node_pool.config.resource_labels")
        pool.locations = list(pool.locations) or list(cluster.locations)
        zone, machine, wrong = pool.locations[0], config.machine_type, ""
        disk = config.disk_type or "pd-balanced"
        if config.service_account and not iam.knows(self.rest, config.service_account):
            wrong = f'Service account "{config.service_account}" does not exist.'
        path = f"projects/{self.world.the_project.id}/zones/{zone}/machineTypes/{machine}"
        if not self.store.has("compute", path):
            wrong = f'Machine type with name "{machine}" does not exist in zone "{zone}".'
        if (machine.partition("-")[0] in HYPERDISK_ONLY) == disk.startswith("pd-"):
            wrong = f"[{disk}] features are not compatible for creating instance of {machine}."
        if machine == "a3-highgpu-1g" and not (config.spot or config.flex_start):
            wrong = "a3-highgpu-1g is available as Spot or Flex-start VMs only."
        if wrong:
            raise ApiError("INVALID_ARGUMENT", wrong)
        pool.status, pool.self_link = PoolStatus.PROVISIONING, f"{cluster.self_link}/nodePools/{pool.name}"
        self.sizes[pool.self_link] = pool.initial_node_count
        root = f"https://www.googleapis.com/compute/v1/projects/{self.world.the_project.id}/zones/{zone}"
        pool.instance_group_urls = [
            f"{root}/instanceGroupManagers/gke-{cluster.name}-{pool.name}-0a1b2c3d-grp"
        ]

    def _run(self, pool: types.NodePool) -> None:
        pool.status = PoolStatus.RUNNING
        self.on_pool(pool, self.sizes[pool.self_link])

    def left(self) -> list[str]:
        """List the clusters and node pools."""
        paths = []
        for key, cluster in self.clusters.items():
            path = f"container.googleapis.com/{_path(key)}"
            paths += [path, *(f"{path}/nodePools/{pool.name}" for pool in cluster.node_pools)]
        return paths


def _key(name: str) -> Key:
    words = name.split("/")
    if len(words) < 6 or words[0::2][:3] != ["projects", "locations", "clusters"]:
        raise ApiError("INVALID_ARGUMENT", f"Invalid resource name: {name!r}.")
    return words[1], words[3], words[5]


def _path(key: Key) -> str:
    return "projects/{}/locations/{}/clusters/{}".format(*key)


def _check_name(name: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        raise ApiError("INVALID_ARGUMENT", f'Invalid value for field "{field}": "{name}".')


def _spoil(pool: types.NodePool, failure: OperationFailure, status: PoolStatus = PoolStatus.ERROR) -> None:
    """Leave a node pool as a failed operation leaves it."""
    pool.status, pool.status_message, pool.conditions = status, failure.message, [_condition(failure)]


def _condition(failure: OperationFailure) -> types.StatusCondition:
    code = types.StatusCondition.Code[failure.condition]
    return types.StatusCondition(code=code, message=failure.message)


def _not_found(name: str) -> ApiError:
    return ApiError("NOT_FOUND", f"Not found: {name}.", "RESOURCE_NOT_FOUND")
