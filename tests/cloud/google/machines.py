"""What GKE makes at Compute Engine for a cluster: firewall rules in its network, and groups of machines.

The size of a node pool is its groups'; the container API itself tells only the initial one
(https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.clusters.nodePools). The
machines and their disks are not here.
"""

from google.cloud.container_v1 import types

from .store import Store

LINK = "https://www.googleapis.com/compute/v1/"


def raise_firewall(store: Store, project: str, cluster: types.Cluster) -> None:
    """Make a cluster's firewall rules."""
    network = f"{LINK}projects/{project}/global/networks/{cluster.network.rsplit('/', 1)[-1]}"
    for name in _rules(cluster):
        body = {"kind": "compute#firewall", "name": name, "network": network, "direction": "INGRESS"}
        store.put("compute", f"projects/{project}/global/firewalls/{name}", body)


def raise_pool(store: Store, project: str, cluster: types.Cluster, pool: types.NodePool) -> None:
    """Make a pool's groups of machines, one a zone."""
    urls = []
    for zone in pool.locations:
        name = f"gke-{cluster.name[:20]}-{pool.name[:20]}-{cluster.id[:8]}-grp"
        path = f"projects/{project}/zones/{zone}/instanceGroupManagers/{name}"
        urls.append(LINK + path)
        body = {
            "kind": "compute#instanceGroupManager",
            "name": name,
            "zone": f"{LINK}projects/{project}/zones/{zone}",
            "targetSize": pool.initial_node_count,
            "selfLink": LINK + path,
        }
        store.put("compute", path, body)
    pool.instance_group_urls = urls


def size(store: Store, pool: types.NodePool) -> int:
    """Return how many machines a pool has in each of its zones."""
    for url in pool.instance_group_urls:
        return store.get("compute", url.removeprefix(LINK)).body["targetSize"]
    return 0


def resize(store: Store, pool: types.NodePool, count: int) -> None:
    """Set how many machines a pool has in each of its zones."""
    for url in pool.instance_group_urls:
        store.get("compute", url.removeprefix(LINK)).body["targetSize"] = count


def raze_pool(store: Store, pool: types.NodePool) -> None:
    """Delete a pool's groups."""
    for url in pool.instance_group_urls:
        store.drop("compute", url.removeprefix(LINK))


def raze_firewall(store: Store, project: str, cluster: types.Cluster) -> None:
    """Delete a cluster's firewall rules."""
    for name in _rules(cluster):
        store.drop("compute", f"projects/{project}/global/firewalls/{name}")


def _rules(cluster: types.Cluster) -> list[str]:
    return [
        f"gke-{cluster.name}-{cluster.id[:8]}-{kind}" for kind in ("all", "exkubelet", "inkubelet", "vms")
    ]
