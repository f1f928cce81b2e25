"""The resources of a cluster: their names, whose they are, and how they are found.

Labels say whose a resource is. Networks, routers, service accounts and schedules have none: there the
description has the same words. What Kubernetes made and left (disks, file systems, load balancers) is known
by its labels, or by the cluster's own network.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from kitlib.k8s import names
from trainyard_kit.clouds import tags as tags_
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.price_table import HOURS_A_MONTH, price_table, rate
from trainyard_kit.clouds.spec import CloudResource
from trainyard_kit.clouds.tags import Tags

ZONE = "trainyard-zone"  # the label with the cluster's zone: by it the rest is found when the cluster is gone
# Of the service accounts, in the project. Image streaming needs the nodes' second: https://cloud.google.com/kubernetes-engine/docs/how-to/image-streaming
ROLES: dict[str, tuple[str, ...]] = {
    "expiry": ("roles/container.clusterAdmin",),
    "nodes": ("roles/container.defaultNodeServiceAccount", "roles/serviceusage.serviceUsageConsumer"),
}
ENDS = {
    "training": "end of the training pool",
    "cluster": "end of the cluster",
    "again": "end of the cluster, the day after",
}
ORPHANS = {  # collections of Compute Engine in which Kubernetes leaves things, and one of each
    "forwardingRules": "forwardingRule",
    "networkEndpointGroups": "networkEndpointGroup",
    "disks": "disk",
    "targetPools": "targetPool",
    "addresses": "address",
    "firewalls": "firewall",
}
PRICES = {"forwardingRules": "load balancer", "addresses": "public IPv4 address"}
Item = Mapping[str, Any]  # a resource, as its API shows it
_INSTANCES = "projects.locations.instances"
_OF_SERVICE = re.compile(r"k8s-fw-(a[0-9a-f]{31})")  # the firewall rule of a Service's load balancer


@dataclass(frozen=True)
class Part:
    """A resource, as the discovery client addresses it.

    Attributes:
        name: What it is for: ``network``.
        service: ``compute``.
        collection: ``networks``.
        where: The parameters of its ``get`` and ``delete``.
        costs: In words; empty if nothing.
        item: As the API shows it, once found.
    """

    name: str
    service: str
    collection: str
    where: Mapping[str, str]
    costs: str = ""
    item: Item | None = None

    @property
    def id(self) -> str:
        return self.where.get("name") or "/".join(self.where.values())

    @property
    def target(self) -> Mapping[str, str]:
        """The parameters of the methods of its policy."""
        return {"resource": self.id} if "name" in self.where else self.where

    def get(self, session: GcpSession) -> Any:
        """Get it; None if it does not exist."""
        return session.find(self.service, f"{self.collection}.get", **self.where)

    def delete(self, session: GcpSession) -> Any:
        """Begin to delete it; returns the operation; None if it does not exist."""
        if self.service == "storage":  # a bucket has to be empty
            session.empty_bucket(self.where["bucket"])
        return session.find(self.service, f"{self.collection}.delete", **self.where)

    def resource(self, session: GcpSession, cluster: str) -> CloudResource:
        """Describe it for lists."""
        word, state = re.sub("ies$", "y", self.collection.rpartition(".")[2]), (self.item or {}).get("status")
        kind = f"{self.service}.googleapis.com/{re.sub('(?<=ss)es$|s$', '', word[0].upper() + word[1:])}"
        shown = state.lower() if isinstance(state, str) else "there"
        where, tags = session.zone or session.project, tags_of(self.item)
        return CloudResource(cluster, self.name, kind, self.id, where, shown, self.costs, tags)


def parts(session: GcpSession, cluster: str) -> dict[str, Part]:
    """The resources that the kit creates for a cluster, by name; without a zone only those of the project."""
    project, region, name = session.project, session.region, f"trainyard-{cluster}"
    root, here = f"projects/{project}", {"project": project, "region": region}
    images = f"{root}/locations/{region}/repositories/{name}"
    rates = [rate("google", service) for service in ("Cloud Storage", "Artifact Registry")]
    all_parts = [
        Part("network", "compute", "networks", {"project": project, "network": name}),
        Part("bucket", "storage", "buckets", {"bucket": bucket_name(project, cluster)}, rates[0]),
    ]
    for role in ROLES:
        path = f"{root}/serviceAccounts/{account(session, role, cluster)}"
        all_parts.append(Part(f"account {role}", "iam", "projects.serviceAccounts", {"name": path}))
    if session.zone:
        for what, end in ENDS.items():
            path = f"{root}/locations/{session.scheduler_region}/jobs/{name}-{what}"
            all_parts.append(Part(end, "cloudscheduler", "projects.locations.jobs", {"name": path}))
        lab, price = f"{session.parent}/clusters/{cluster}", rate("google", "GKE control plane")
        collection = "projects.locations.repositories"
        all_parts += [
            Part("subnet", "compute", "subnetworks", here | {"subnetwork": name}),
            Part("router", "compute", "routers", here | {"router": name}),
            Part("repository", "artifactregistry", collection, {"name": images}, rates[1]),
            Part("cluster", "container", "projects.locations.clusters", {"name": lab}, price),
        ]
    return {part.name: part for part in all_parts}


def find_parts(session: GcpSession, cluster: str) -> list[Part]:
    """Find what exists of a cluster, whoever created it."""
    listed = list(parts(session, cluster).values())
    with ThreadPoolExecutor(8, thread_name_prefix="find") as pool:
        items = list(pool.map(lambda part: part.get(session), listed))
    existing = [replace(part, item=item) for part, item in zip(listed, items, strict=True)]
    existing = [part for part in existing if is_ours(part.item, cluster)]
    owns_network = any(part.name == "network" for part in existing)
    return [*existing, *_orphans(session, cluster, own_network=owns_network)]


def traces(session: GcpSession) -> dict[str, str]:
    """The kit's clusters of which something exists in the project, each with its zone; empty if unknown."""
    root = f"projects/{session.project}"
    zones: dict[str, str] = {}
    items = [
        *clusters_of(session),
        *session.every("iam", "projects.serviceAccounts.list", "accounts", name=root, pageSize=100),
        *session.every("compute", "networks.list", "items", project=session.project),
        *session.every("storage", "buckets.list", "items", project=session.project),
    ]
    for item in items:
        tags, zone = tags_of(item), labels_of(item).get(ZONE, "")
        if tags is not None and _is_name(tags.cluster) and not zones.get(tags.cluster):
            zones[tags.cluster] = zone if _is_name(zone) and zone.count("-") == 2 else ""
    return zones


def clusters_of(session: GcpSession) -> list[Item]:
    """List all clusters of the project, the kit's and others; none where GKE's API is not enabled."""
    parent = f"projects/{session.project}/locations/-"
    return (session.find("container", "projects.locations.clusters.list", parent=parent) or {}).get(
        "clusters", []
    )


def begun(session: GcpSession, cluster: str) -> tuple[Tags | None, str]:
    """The tags and the zone of a cluster that was begun, by what is created first and deleted last."""
    item = parts(session, cluster)["account expiry"].get(session)
    return (tags_of(item), labels_of(item).get(ZONE, "")) if is_ours(item, cluster) else (None, "")


# Names, and whose it is


def account(session: GcpSession, role: str, cluster: str) -> str:
    """The address of a service account, whose id has at most 30 characters."""
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:6]
    return f"ty-{role}-{cluster[:13].strip('-')}-{digest}@{session.project}.iam.gserviceaccount.com"


def bucket_name(project: str, cluster: str) -> str:
    """The name of a cluster's bucket; names of buckets are global."""
    digest = hashlib.sha256(f"{project}/{cluster}".encode()).hexdigest()[:10]
    return f"trainyard-{cluster[:40]}-{digest}"


def labels(tags: Tags, session: GcpSession) -> dict[str, str]:
    """The labels of a resource: the kit's tags, and the cluster's zone."""
    return {**tags.google(), ZONE: session.zone}


def description(tags: Tags, session: GcpSession) -> str:
    """The same as words of a description; a service account's has 256 bytes in all."""
    return " ".join(f"{key}={value[:40]}" for key, value in labels(tags, session).items())


def labels_of(item: Item) -> dict[str, str]:
    """The labels of what an API shows."""
    words = (word.split("=", 1) for word in item.get("description", "").split() if "=" in word)
    return item.get("labels") or item.get("resourceLabels") or dict(words)


def tags_of(item: Item | None) -> Tags | None:
    """The kit's tags of what an API shows; None if it is not the kit's."""
    return tags_.read(labels_of(item)) if item is not None else None


def is_ours(item: Item | None, cluster: str) -> bool:
    """Whether it exists, and is the kit's and this cluster's."""
    tags = tags_of(item)
    return tags is not None and tags.cluster == cluster


def cost(key: str, count: float = 1) -> str:
    """A price in words, by the kit's table."""
    an_hour = price_table("google").price(key, count=count).together
    a_month = an_hour * HOURS_A_MONTH
    return f"{a_month:.2f} $ a month" if a_month < 30 else f"{an_hour:.2f} $ an hour"


def _is_name(word: str) -> bool:
    return bool(word) and names.slug(word) == word  # anybody may write labels


# What Kubernetes left


def _orphans(session: GcpSession, cluster: str, *, own_network: bool) -> Iterator[Part]:
    def inside(item: Mapping[str, Any]) -> bool:
        return own_network and f"/{item.get('network', '')}".endswith(f"/networks/trainyard-{cluster}")

    listed = {collection: list(_listed(session, collection)) for collection in ORPHANS}
    firewalls = [
        _OF_SERVICE.fullmatch(firewall["name"]) for firewall in listed["firewalls"] if inside(firewall)
    ]
    services, nodes = {firewall[1] for firewall in firewalls if firewall}, f"gke-{cluster[:20]}"
    for collection, singular in ORPHANS.items():
        for item in listed[collection]:
            of_node = collection == "disks" and item["name"].startswith(nodes)  # it goes with the node
            if not of_node and (is_ours(item, cluster) or inside(item) or item["name"] in services):
                yield _orphan(session, collection, singular, item)
    root = f"projects/{session.project}/locations/-"
    for item in session.every("file", f"{_INSTANCES}.list", "instances", parent=root):
        if is_ours(item, cluster) or any(map(inside, item.get("networks", ()))):
            size = sum(int(share.get("capacityGb", 0)) for share in item.get("fileShares", ()))
            name, price = item["name"].rpartition("/")[2], cost("Filestore, basic HDD", size)
            yield Part(f"file system {name}", "file", _INSTANCES, {"name": item["name"]}, price, item)


def _listed(session: GcpSession, collection: str) -> Iterator[dict[str, Any]]:
    if collection == "firewalls":
        yield from session.every("compute", "firewalls.list", "items", project=session.project)
        return
    for scope in session.every("compute", f"{collection}.aggregatedList", "items", project=session.project):
        yield from scope.get(collection, ())


def _orphan(session: GcpSession, collection: str, singular: str, item: Mapping[str, Any]) -> Part:
    place = {key: item[key].rpartition("/")[2] for key in ("zone", "region") if item.get(key)}
    name = re.sub("([A-Z])", lambda letter: f" {letter[1].lower()}", singular) + f" {item['name']}"
    price = cost(PRICES[collection]) if collection in PRICES else ""
    if collection == "disks":
        price = cost("persistent disk, balanced", float(item.get("sizeGb", 0)))
    if not place and collection != "firewalls":
        collection = f"global{collection[0].upper()}{collection[1:]}"
    where = {"project": session.project, **place, singular: item["name"]}
    return Part(name, "compute", collection, where, price, item)
