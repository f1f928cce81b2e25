"""The resources of a cluster: their names, their owner, and how they are found.

Labels record the owner. Networks, routers, service accounts and schedules have no labels; their description
has the same text. Orphans that Kubernetes created (disks, file systems, load balancers) are found by their
labels, or by the cluster's own network.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any

import yaml

from kitlib.k8s import names
from trainyard_kit.clouds import tags as tags_
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.price_table import HOURS_A_MONTH, price_table, rate
from trainyard_kit.clouds.spec import CloudResource
from trainyard_kit.clouds.tags import Tags

REQUESTS = yaml.safe_load(Path(__file__).with_name("requests.yaml").read_text(encoding="utf-8"))
ZONE = "trainyard-zone"  # the label with the cluster's zone, to find the other resources without the cluster
# Of the service accounts, in the project. The nodes need the second for image streaming: https://cloud.google.com/kubernetes-engine/docs/how-to/image-streaming
ROLES: dict[str, tuple[str, ...]] = {
    "expiry": ("roles/container.clusterAdmin",),
    "nodes": ("roles/container.defaultNodeServiceAccount", "roles/serviceusage.serviceUsageConsumer"),
}
EXPIRY_JOBS = [name for name in REQUESTS if name.startswith("end of")]
# Collections of Compute Engine in which Kubernetes leaves resources, with display names
ORPHANS = {
    "forwardingRules": "forwarding rule",
    "networkEndpointGroups": "network endpoint group",
    "disks": "disk",
    "targetPools": "target pool",
    "addresses": "address",
    "firewalls": "firewall",
}
PRICES = {"forwardingRules": "load balancer", "addresses": "public IPv4 address"}
Item = Mapping[str, Any]  # a resource, as its API returns it
_SERVICE_FIREWALL = re.compile(r"k8s-fw-(a[0-9a-f]{31})")  # the firewall rule of a Service's load balancer


@dataclass(frozen=True)
class Part:
    """A resource.

    Attributes:
        name: What it is for: ``network``.
        service: ``compute``.
        path: Its path in the API: ``projects/p/global/networks/lab``.
        costs: ``0.045 $ an hour``; empty if nothing.
        item: As the API returns it, once found.
        query: URL parameters of the request that creates it.
    """

    name: str
    service: str
    path: str
    costs: str = ""
    item: Item | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def collection(self) -> str:
        collection = self.path.split("/")[-2]
        return "buckets" if collection == "b" else collection

    def get(self, session: GcpSession) -> dict[str, Any] | None:
        """Get the resource; None if it does not exist."""
        return session.find(self.service, self.path)

    def delete(self, session: GcpSession) -> dict[str, Any] | None:
        """Start deleting the resource; return the operation, or None if it does not exist."""
        if self.service == "storage":  # only empty buckets can be deleted
            session.empty_bucket(self.path.partition("/")[2])
        return session.find(self.service, self.path, "DELETE")

    def resource(self, session: GcpSession, cluster: str) -> CloudResource:
        singular = re.sub("(?<=ss)es$|s$", "", re.sub("ies$", "y", self.collection))
        kind = f"{self.service}.googleapis.com/{singular[0].upper()}{singular[1:]}"
        status = (self.item or {}).get("status")
        state = status.lower() if isinstance(status, str) else "exists"
        where, tags = session.zone or session.project, tags_of(self.item)
        id_ = self.path.removeprefix("b/")  # of a bucket
        return CloudResource(cluster, self.name, kind, id_, where, state, self.costs, tags)


def parts(session: GcpSession, cluster: str) -> dict[str, Part]:
    """The resources that the kit creates for a cluster, by name; without a zone only global ones."""
    parts_by_name, values = {}, placeholders(session, cluster)
    for name, request in REQUESTS.items():
        service, _, path = request["at"].partition("/")
        if session.zone or not re.search(r"\$\{(zone|region|scheduler)", path):
            costs = rate("google", request["price"]) if "price" in request else ""
            query = fill(request.get("query", {}), values)
            parts_by_name[name] = Part(name, service, fill(path, values), costs, query=query)
    return parts_by_name


def placeholders(session: GcpSession, cluster: str) -> dict[str, Any]:
    """The values of the placeholders in `requests.yaml` for a cluster."""
    accounts = {role: account(session, role, cluster) for role in ROLES}
    return {
        "project": session.project,
        "region": session.region,
        "zone": session.zone,
        "scheduler_region": session.scheduler_region if session.zone else "",
        "cluster": cluster,
        "bucket": bucket_name(session.project, cluster),
        **accounts,
        **{f"{role}_id": address.partition("@")[0] for role, address in accounts.items()},
    }


def fill(template: object, values: Mapping[str, Any]) -> Any:
    """Substitute placeholders; a string that is only ``${labels}`` becomes the value, of any type."""
    if isinstance(template, dict):
        return {key: fill(item, values) for key, item in template.items()}
    if isinstance(template, list):
        return [fill(item, values) for item in template]
    if not isinstance(template, str):
        return template
    placeholder = re.fullmatch(r"\$\{(\w+)\}", template)
    return values[placeholder[1]] if placeholder else Template(template).substitute(values)


def find_parts(session: GcpSession, cluster: str) -> list[Part]:
    """Find the existing resources of a cluster, whoever created them."""
    listed = list(parts(session, cluster).values())
    with ThreadPoolExecutor(8, thread_name_prefix="find") as pool:
        items = list(pool.map(lambda part: part.get(session), listed))
    existing = [replace(part, item=item) for part, item in zip(listed, items, strict=True)]
    existing = [part for part in existing if is_ours(part.item, cluster)]
    owns_network = any(part.name == "network" for part in existing)
    return [*existing, *_orphans(session, cluster, own_network=owns_network)]


def cluster_zones(session: GcpSession) -> dict[str, str]:
    """The zones of the kit's clusters that have resources in the project, by cluster; empty if unknown."""
    root = f"projects/{session.project}"
    zones: dict[str, str] = {}
    items = [
        *clusters_of(session),
        *session.paginate("iam", f"{root}/serviceAccounts", "accounts", pageSize="100"),
        *session.paginate("compute", f"{root}/global/networks", "items"),
        *session.paginate("storage", "b", "items", project=session.project),
    ]
    for item in items:
        tags, zone = tags_of(item), labels_of(item).get(ZONE, "")
        if tags is not None and _is_name(tags.cluster) and not zones.get(tags.cluster):
            zones[tags.cluster] = zone if _is_name(zone) and zone.count("-") == 2 else ""
    return zones


def clusters_of(session: GcpSession) -> list[Item]:
    """List all clusters of the project, the kit's and others; none if GKE's API is not enabled."""
    path = f"projects/{session.project}/locations/-/clusters"
    return (session.find("container", path) or {}).get("clusters", [])


def read_expiry_account(session: GcpSession, cluster: str) -> tuple[Tags | None, str]:
    """The tags and zone of a cluster, by the resource that is created first and deleted last."""
    item = parts(session, cluster)["account expiry"].get(session)
    if item is None or not is_ours(item, cluster):
        return None, ""
    return tags_of(item), labels_of(item).get(ZONE, "")


# Names and owners


def account(session: GcpSession, role: str, cluster: str) -> str:
    """The e-mail address of a service account; its id has at most 30 characters."""
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:6]
    return f"ty-{role}-{cluster[:13].strip('-')}-{digest}@{session.project}.iam.gserviceaccount.com"


def bucket_name(project: str, cluster: str) -> str:
    """The name of a cluster's bucket; bucket names are global."""
    digest = hashlib.sha256(f"{project}/{cluster}".encode()).hexdigest()[:10]
    return f"trainyard-{cluster[:40]}-{digest}"


def labels(tags: Tags, session: GcpSession) -> dict[str, str]:
    """The labels of a resource: the kit's tags and the cluster's zone."""
    return {**tags.google(), ZONE: session.zone}


def description(tags: Tags, session: GcpSession) -> str:
    """The labels as a description; that of a service account has at most 256 bytes."""
    return " ".join(f"{key}={value[:40]}" for key, value in labels(tags, session).items())


def labels_of(item: Item) -> dict[str, str]:
    """The labels of a resource, or those in its description."""
    pairs = (pair.split("=", 1) for pair in item.get("description", "").split() if "=" in pair)
    return item.get("labels") or item.get("resourceLabels") or dict(pairs)


def tags_of(item: Item | None) -> Tags | None:
    """The kit's tags of a resource; None if it is not the kit's."""
    return tags_.read(labels_of(item)) if item is not None else None


def is_ours(item: Item | None, cluster: str) -> bool:
    """Whether a resource exists and belongs to this cluster of the kit."""
    tags = tags_of(item)
    return tags is not None and tags.cluster == cluster


def cost(key: str, count: float = 1) -> str:
    hourly = price_table("google").price(key, count=count).hourly
    monthly = hourly * HOURS_A_MONTH
    return f"{monthly:.2f} $ a month" if monthly < 30 else f"{hourly:.2f} $ an hour"


def _is_name(value: str) -> bool:
    return bool(value) and names.slug(value) == value  # labels are untrusted


# Orphans


def _orphans(session: GcpSession, cluster: str, *, own_network: bool) -> Iterator[Part]:
    def in_network(item: Mapping[str, Any]) -> bool:
        return own_network and f"/{item.get('network', '')}".endswith(f"/networks/trainyard-{cluster}")

    listed = {collection: list(_listed(session, collection)) for collection in ORPHANS}
    firewalls = [item["name"] for item in listed["firewalls"] if in_network(item)]
    services = {match[1] for match in map(_SERVICE_FIREWALL.fullmatch, firewalls) if match}
    nodes = f"gke-{cluster[:20]}"
    for collection in ORPHANS:
        for item in listed[collection]:
            boot_disk = collection == "disks" and item["name"].startswith(nodes)  # deleted with its node
            if not boot_disk and (is_ours(item, cluster) or in_network(item) or item["name"] in services):
                yield _orphan(collection, item)
    path = f"projects/{session.project}/locations/-/instances"
    for item in session.paginate("file", path, "instances"):
        if is_ours(item, cluster) or any(map(in_network, item.get("networks", ()))):
            size = sum(int(share.get("capacityGb", 0)) for share in item.get("fileShares", ()))
            name, price = item["name"].rpartition("/")[2], cost("Filestore, basic HDD", size)
            yield Part(f"file system {name}", "file", item["name"], price, item)


def _listed(session: GcpSession, collection: str) -> Iterator[dict[str, Any]]:
    project = f"projects/{session.project}"
    if collection == "firewalls":
        yield from session.paginate("compute", f"{project}/global/firewalls", "items")
        return
    for scope in session.paginate("compute", f"{project}/aggregated/{collection}", "items"):
        yield from scope.get(collection, ())


def _orphan(collection: str, item: Item) -> Part:
    price = cost(PRICES[collection]) if collection in PRICES else ""
    if collection == "disks":
        price = cost("persistent disk, balanced", float(item.get("sizeGb", 0)))
    name, path = f"{ORPHANS[collection]} {item['name']}", item["selfLink"].partition("/compute/v1/")[2]
    return Part(name, "compute", path, price, item)
