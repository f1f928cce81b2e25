"""What GKE gives a new cluster or node pool, and what it refuses of one. There are two versions."""

import uuid

from google.cloud.container_v1 import types

from . import labels, quotas
from .api_errors import ApiError
from .clusters import Clusters, ClusterStatus, PoolStatus
from .operations import timestamp
from .world import Project

VERSION = "1.36.3-gke.1000000"
OLDER = "1.35.6-gke.1200000"


def check_network(clusters: Clusters, project: Project, location: str, cluster: types.Cluster) -> None:
    """Refuse a cluster in a network, or as an account, that is not there."""
    places = (
        ("Network", cluster.network, "global/networks"),
        ("Subnetwork", cluster.subnetwork, f"regions/{quotas.region_of(location)}/subnetworks"),
    )
    for kind, name, place in places:
        name = name.rsplit("/", 1)[-1] or "default"
        if not clusters.store.has("compute", f"projects/{project.id}/{place}/{name}"):
            raise ApiError("INVALID_ARGUMENT", f'{kind} "{name}" does not exist.')


def check_pool(clusters: Clusters, project: Project, location: str, pool: types.NodePool) -> None:
    labels.check(pool.config.resource_labels, "node_pool.config.resource_labels")
    account = pool.config.service_account
    ours = account.endswith(f"@{project.id}.iam.gserviceaccount.com")
    if ours and not clusters.store.has("iam", f"projects/{project.id}/serviceAccounts/{account}"):
        raise ApiError("INVALID_ARGUMENT", f'Service account "{account}" does not exist.')
    check_name(pool.name, "node_pool.name", longest=40)
    quotas.check(clusters, project, location, pool, pool.initial_node_count)


def set_cluster_defaults(clusters: Clusters, cluster: types.Cluster, project: Project, location: str) -> None:
    places = "zones" if location.count("-") == 2 else "locations"
    cluster.zone = cluster.location = location
    cluster.locations = list(cluster.locations) or [location]
    cluster.status = ClusterStatus.PROVISIONING
    cluster.id = uuid.uuid4().hex * 2
    cluster.etag = uuid.uuid4().hex[:8]
    cluster.label_fingerprint = uuid.uuid4().hex[:8]
    cluster.create_time = timestamp(clusters.world.clock.now)
    cluster.network = cluster.network or "default"
    cluster.subnetwork = cluster.subnetwork or "default"
    version = cluster.initial_cluster_version
    cluster.initial_cluster_version = VERSION if version in ("", "-", "latest") else version
    cluster.current_master_version = cluster.current_node_version = cluster.initial_cluster_version
    cluster.endpoint = clusters.world.endpoint
    cluster.master_auth.cluster_ca_certificate = clusters.world.ca
    cluster.self_link = f"https://container.googleapis.com/v1/projects/{project.id}/{places}/{location}/clusters/{cluster.name}"


def set_pool_defaults(pool: types.NodePool, cluster: types.Cluster) -> None:
    pool.status = PoolStatus.PROVISIONING
    pool.version = pool.version or cluster.current_master_version
    pool.locations = list(pool.locations) or list(cluster.locations)
    pool.config.machine_type = pool.config.machine_type or "e2-medium"
    pool.config.disk_size_gb = pool.config.disk_size_gb or 100
    pool.config.image_type = pool.config.image_type or "COS_CONTAINERD"
    pool.etag = uuid.uuid4().hex[:8]
    pool.self_link = f"{cluster.self_link}/nodePools/{pool.name}"


def check_name(name: str, field: str, *, longest: int) -> None:
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
