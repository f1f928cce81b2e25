"""The GKE cluster and its node pool for training.

The cluster comes with a small pool for what Kubernetes itself runs. The training pool grows and shrinks by
itself between 0 and the machines asked for: what nobody uses for ten minutes is given back.
"""

from google.cloud.container_v1 import types

from clouds.google.accounts import email
from clouds.google.client_errors import ErrorReply, to_error
from clouds.google.machines import CHANNEL, SYSTEM_DISK_GB, SYSTEM_MACHINE, MachinePool
from clouds.google.network import network_of
from clouds.google.owned import GcpResource, labels_of
from clouds.google.session import GcpSession, find
from clouds.reconciler.resource import ResourceState, ResourceStatus
from clouds.tags import Tags

TRAINING, SYSTEM = "training", "default-pool"
_SCOPES = [
    "https://www.googleapis.com/auth/cloud-platform"
]  # what the machines may do is their account's rights
_OVER = types.Operation.Status.DONE
_Cluster, _Pool = types.Cluster.Status, types.NodePool.Status
_STATES = {
    _Cluster.PROVISIONING: ResourceState.PENDING,
    _Cluster.RECONCILING: ResourceState.PENDING,
    _Cluster.RUNNING: ResourceState.READY,
    _Cluster.DEGRADED: ResourceState.READY,
    _Cluster.STOPPING: ResourceState.DELETING,
    _Cluster.ERROR: ResourceState.FAILED,
}
_POOL_STATES = {
    _Pool.PROVISIONING: ResourceState.PENDING,
    _Pool.RECONCILING: ResourceState.PENDING,
    _Pool.RUNNING: ResourceState.READY,
    _Pool.RUNNING_WITH_ERROR: ResourceState.FAILED,
    _Pool.STOPPING: ResourceState.DELETING,
    _Pool.ERROR: ResourceState.FAILED,
}


class ContainerResource(GcpResource):
    """A thing of the container API, whose operations are followed to their end.

    An operation that another process began is found again by listing, as long as the thing is not ready.
    """

    def under_way(self) -> bool:
        if not self.operation:
            return False
        name = f"{self.session.place}/operations/{self.operation}"
        now = find(self.session.container, "get_operation", name=name)
        if now is not None and now.status != _OVER:
            return True
        self.operation = ""
        if now is not None and (words := failure_of(now)):
            raise to_error(ErrorReply(400, str(now.error.code), words), self.id, self.session.project)
        return False

    def begun(self, operation: types.Operation) -> None:
        """Follow this operation from now on."""
        self.operation = operation.name

    def find_operation(self) -> None:
        """Follow what somebody else began on this thing, so that its end is told in its own words."""
        listed = self.session.container("list_operations", parent=self.session.place)
        tail = self.id.partition("/locations/")[2].partition("/")[2]
        for each in listed.operations:
            if each.status != _OVER and each.target_link.endswith(f"/{tail}"):
                self.operation, self.meanwhile = each.name, ResourceState.PENDING

    def settled(self, state: ResourceState, words: str) -> ResourceStatus:
        """Build the status, with the operation that is under way."""
        if state is ResourceState.PENDING and not self.operation:
            self.find_operation()
        return ResourceStatus(state, self.id, words)


class GkeControlPlane(ContainerResource):
    """The cluster with its pool for the system."""

    name, kind = "cluster", "container.googleapis.com/Cluster"
    expected, expected_gone = 360.0, 300.0
    hourly_cost = "about 0.25 dollars an hour, with its machine for the system"

    def __init__(self, session: GcpSession, tags: Tags, *, network: str | None = None) -> None:
        super().__init__(session, tags)
        self.network = network
        made = () if network else ("subnet",)
        self.depends_on = (*made, "account nodes", "rights nodes", "rights expiry", "end of the cluster")

    @property
    def id(self) -> str:
        return f"{self.session.place}/clusters/{self.tags.cluster}"

    def found(self) -> types.Cluster | None:
        return find(self.session.container, "get_cluster", name=self.id)

    def labels(self, found: types.Cluster):
        return dict(found.resource_labels)

    def seen(self, found: types.Cluster) -> ResourceStatus:
        state = _STATES.get(found.status, ResourceState.PENDING)
        return self.settled(
            state, _words(found) if state in (ResourceState.FAILED, ResourceState.READY) else ""
        )

    def create(self) -> None:
        def request() -> None:
            body = self.body()
            self.begun(self.session.container("create_cluster", parent=self.session.place, cluster=body))

        self.send_create(request)

    def remove(self) -> None:
        self.begun(self.session.container("delete_cluster", name=self.id))

    def body(self) -> types.Cluster:
        """Build the body of the request."""
        own = network_of(self.tags.cluster)
        system = types.LoggingComponentConfig.Component.SYSTEM_COMPONENTS
        figures = types.MonitoringComponentConfig.Component.SYSTEM_COMPONENTS
        return types.Cluster(
            name=self.tags.cluster,
            resource_labels=labels_of(self.tags, self.session.zone),
            release_channel=types.ReleaseChannel(channel=types.ReleaseChannel.Channel[CHANNEL]),
            network=self.network or own,
            subnetwork="" if self.network else own,
            ip_allocation_policy=types.IPAllocationPolicy(use_ip_aliases=True),
            # Dataplane V2 heeds NetworkPolicies: attendees of one cluster do not reach each other's pods
            network_config=types.NetworkConfig(datapath_provider=types.DatapathProvider.ADVANCED_DATAPATH),
            workload_identity_config=types.WorkloadIdentityConfig(
                workload_pool=f"{self.session.project}.svc.id.goog"
            ),
            addons_config=types.AddonsConfig(
                gce_persistent_disk_csi_driver_config=types.GcePersistentDiskCsiDriverConfig(enabled=True),
                gcp_filestore_csi_driver_config=types.GcpFilestoreCsiDriverConfig(enabled=True),
                gcs_fuse_csi_driver_config=types.GcsFuseCsiDriverConfig(enabled=True),
            ),
            # what is left out here is billed by the gigabyte, and takes a core of the small pool
            logging_config=types.LoggingConfig(
                component_config=types.LoggingComponentConfig(enable_components=[system])
            ),
            monitoring_config=types.MonitoringConfig(
                component_config=types.MonitoringComponentConfig(enable_components=[figures]),
                managed_prometheus_config=types.ManagedPrometheusConfig(enabled=False),
            ),
            node_pools=[
                types.NodePool(
                    name=SYSTEM,
                    initial_node_count=1,
                    config=node_config(self.session, self.tags, SYSTEM_MACHINE, disk_gb=SYSTEM_DISK_GB),
                )
            ],
        )


class ClusterLabels(GkeControlPlane):
    """That the cluster's labels are the tags: they change when its end does."""

    name, expected = "labels of the cluster", 30.0

    def seen(self, found: types.Cluster) -> ResourceStatus:
        seen = super().seen(found)
        same = dict(found.resource_labels) == labels_of(self.tags, self.session.zone)
        return (
            seen
            if same or seen.state is not ResourceState.READY
            else ResourceStatus(ResourceState.PARTIAL, seen.id)
        )

    def create(self) -> None:
        found = self.found()
        labels = labels_of(self.tags, self.session.zone)
        given = {"resource_labels": labels, "label_fingerprint": found.label_fingerprint}
        self.begun(self.session.container("set_labels", name=self.id, **given))


class TrainingPool(ContainerResource):
    """The machines on which training runs."""

    name, kind, depends_on = "training pool", "container.googleapis.com/NodePool", ("cluster",)
    expected, expected_gone = 180.0, 180.0
    hourly_cost = "by the hour, as many machines as it has"

    def __init__(self, session: GcpSession, tags: Tags, machines: MachinePool | None = None) -> None:
        super().__init__(session, tags)
        self.machines = machines

    @property
    def id(self) -> str:
        return f"{self.session.place}/clusters/{self.tags.cluster}/nodePools/{TRAINING}"

    def found(self) -> types.NodePool | None:
        return find(self.session.container, "get_node_pool", name=self.id)

    def labels(self, found: types.NodePool):
        return dict(found.config.resource_labels)

    def seen(self, found: types.NodePool) -> ResourceStatus:
        state = _POOL_STATES.get(found.status, ResourceState.PENDING)
        return self.settled(state, _words(found) if state is ResourceState.FAILED else "")

    def create(self) -> None:
        def request() -> None:
            parent = self.id.rpartition("/nodePools/")[0]
            body = self.body()
            self.begun(self.session.container("create_node_pool", parent=parent, node_pool=body))

        self.send_create(request)

    def remove(self) -> None:
        self.begun(self.session.container("delete_node_pool", name=self.id))

    def body(self) -> types.NodePool:
        """Build the body of the request."""
        given = self.machines
        assert given is not None, "a pool that was found is not made"
        config = node_config(self.session, self.tags, given.machine_type, disk_gb=given.disk_gb)
        config.spot = given.spot
        config.labels = {"trainyard/pool": TRAINING}
        if given.accelerator:
            newest = types.GPUDriverInstallationConfig.GPUDriverVersion.LATEST
            config.accelerators = [
                types.AcceleratorConfig(
                    accelerator_type=given.accelerator,
                    accelerator_count=given.gpus,
                    gpu_driver_installation_config=types.GPUDriverInstallationConfig(
                        gpu_driver_version=newest
                    ),
                )
            ]
        return types.NodePool(
            name=TRAINING,
            initial_node_count=given.nodes,
            config=config,
            autoscaling=autoscaling(given.nodes),
            management=types.NodeManagement(auto_repair=True, auto_upgrade=True),
        )


def node_config(session: GcpSession, tags: Tags, machine_type: str, *, disk_gb: int) -> types.NodeConfig:
    """Build the node configuration of any pool."""
    metadata = types.WorkloadMetadataConfig.Mode.GKE_METADATA
    return types.NodeConfig(
        machine_type=machine_type,
        disk_size_gb=disk_gb,
        disk_type="pd-balanced",
        service_account=email(session, "nodes", tags.cluster),
        oauth_scopes=_SCOPES,
        resource_labels=labels_of(tags, session.zone),
        workload_metadata_config=types.WorkloadMetadataConfig(mode=metadata),
    )


def autoscaling(most: int) -> types.NodePoolAutoscaling:
    """Build the autoscaling of the training pool."""
    return types.NodePoolAutoscaling(enabled=True, min_node_count=0, max_node_count=max(most, 1))


def failure_of(operation: types.Operation) -> str:
    """Extract the error of an operation, with its conditions."""
    conditions = [*operation.nodepool_conditions, *operation.cluster_conditions]
    said = [operation.error.message, *(f"{each.code.name}: {each.message}" for each in conditions)]
    if not operation.error.code and not conditions:
        return ""
    return "; ".join(dict.fromkeys(filter(None, said))) or "it gave no reason"


def _words(found: types.Cluster | types.NodePool) -> str:
    said = [each.message for each in found.conditions] or [found.status_message]
    return "; ".join(dict.fromkeys(filter(None, said)))
