"""What Kubernetes made for a cluster and may leave behind: disks, file systems, load balancers, their parts.

Those with labels are known by the kit's: GKE writes a cluster's on what it makes, the kit's StorageClasses
theirs. The others are known by the network: a cluster has its own, so all in it is its own.
"""

import re
from collections.abc import Iterator

from clouds import tags as tags_
from clouds.google.network import ComputeResource
from clouds.google.owned import GcpResource, raise_failure
from clouds.google.session import GcpSession, find
from clouds.reconciler.resource import Resource, ResourceState, ResourceStatus
from clouds.tags import Tags

_OF_SERVICE = re.compile(r"k8s-fw-(a[0-9a-f]{31})")  # the firewall rule of a Service's load balancer
CLUSTER, NETWORK = "cluster", "network"


class OrphanedCompute(ComputeResource):
    """A thing of Compute Engine that Kubernetes made, as a listing showed it.

    Args:
        session: The way into its project.
        tags: Of the cluster for which it was made.
        item: As the API shows it.
        collection: ``disks``, ``firewalls`` …
        singular: As the API's parameter calls one: ``disk``.
        depends_on: What is unmade after it.
    """

    expected, expected_gone = 1.0, 15.0

    def __init__(
        self,
        session: GcpSession,
        tags: Tags,
        item: dict,
        collection: str,
        singular: str,
        depends_on: tuple[str, ...],
    ) -> None:
        super().__init__(session, tags)
        self.item, self.collection, self.singular, self.depends_on = item, collection, singular, depends_on
        self.kind = f"compute.googleapis.com/{singular[0].upper()}{singular[1:]}"
        self.name = _named(singular, item["name"])
        self.hourly_cost = self._hourly_cost()
        self.zone = item.get("zone", "").rpartition("/")[2]
        self.region = item.get("region", "").rpartition("/")[2]

    @property
    def id(self) -> str:
        place = self.zone or self.region or "global"
        return f"projects/{self.session.project}/{place}/{self.collection}/{self.item['name']}"

    def _hourly_cost(self) -> str:
        if self.collection == "disks":
            return self.bill("persistent disk, balanced", float(self.item.get("sizeGb", 0)))
        key = {"forwardingRules": "load balancer", "addresses": "public IPv4 address"}.get(self.collection)
        return self.bill(key) if key else ""

    @property
    def _where(self) -> dict[str, str]:
        scope = {"zone": self.zone} if self.zone else {"region": self.region} if self.region else {}
        return {"project": self.session.project, **scope, self.singular: self.item["name"]}

    def found(self):
        return find(self.session.rest, "compute", f"{self._methods}.get", **self._where)

    @property
    def _methods(self) -> str:
        if self.zone or self.region or self.collection in ("firewalls", "healthChecks"):
            return self.collection
        return f"global{self.collection[0].upper()}{self.collection[1:]}"

    def owns(self, found) -> bool:
        return found.get("id") == self.item.get("id")  # of this id it was found to be the cluster's

    def create(self) -> None:
        raise AssertionError("Kubernetes makes it")

    def remove(self) -> None:
        self.operation = self.session.rest("compute", f"{self._methods}.delete", **self._where)["name"]


class FilestoreInstance(GcpResource):
    """A Filestore instance that the cluster's CSI driver made for a claim."""

    kind = "file.googleapis.com/Instance"
    expected, expected_gone = 200.0, 120.0
    depends_on = (NETWORK,)

    def __init__(self, session: GcpSession, tags: Tags, item: dict) -> None:
        super().__init__(session, tags)
        self.item = item
        self.name = _named("file system", item["name"].rpartition("/")[2])
        gigabytes = sum(int(each.get("capacityGb", 0)) for each in item.get("fileShares", ()))
        self.hourly_cost = self.bill("Filestore, basic HDD", gigabytes)

    @property
    def id(self) -> str:
        return self.item["name"]

    def found(self):
        return find(self.session.rest, "file", "projects.locations.instances.get", name=self.id)

    def owns(self, found) -> bool:
        return True  # it was found to be the cluster's, and its name is never given again

    def seen(self, found) -> ResourceStatus:
        states = {
            "CREATING": ResourceState.PENDING,
            "DELETING": ResourceState.DELETING,
            "ERROR": ResourceState.FAILED,
        }
        return ResourceStatus(
            states.get(found.get("state"), ResourceState.READY), self.id, found.get("statusMessage", "")
        )

    def create(self) -> None:
        raise AssertionError("the CSI driver makes it")

    def remove(self) -> None:
        begun = self.session.rest("file", "projects.locations.instances.delete", name=self.id)
        self.operation = begun["name"]

    def under_way(self) -> bool:
        if not self.operation:
            return False
        now = find(self.session.rest, "file", "projects.locations.operations.get", name=self.operation)
        if now is not None and not now.get("done"):
            return True
        self.operation = ""
        raise_failure((now or {}).get("error"), self.id, self.session.project)
        return False


def find_all(session: GcpSession, tags: Tags, network: str | None) -> list[Resource]:
    """Find what Kubernetes created for a cluster and did not delete.

    What GKE itself looks after while the cluster lives is among it: it is deleted after the cluster, if it
    is there then.

    Args:
        session: The way into its project.
        tags: Of the cluster.
        network: Its own network; None if it has none, and then only labels count.
    """
    left = _OrphanFinder(session, tags, network)
    return [*left.disks(), *left.file_systems(), *left.load_balancers()]


class _OrphanFinder:
    def __init__(self, session: GcpSession, tags: Tags, network: str | None) -> None:
        self.session, self.tags = session, tags
        self.network = f"/networks/{network}" if network else None

    def disks(self) -> Iterator[Resource]:
        """Yield the disks of claims; those of machines go with the machines."""
        for each in self._listed("disks"):
            if self._labelled(each) and not each["name"].startswith(f"gke-{self.tags.cluster[:20]}"):
                yield OrphanedCompute(self.session, self.tags, each, "disks", "disk", ())

    def file_systems(self) -> Iterator[Resource]:
        parent = f"projects/{self.session.project}/locations/-"
        listed = self.session.every("file", "projects.locations.instances.list", "instances", parent=parent)
        for each in listed:
            if self._labelled(each) or any(self._in_network(one) for one in each.get("networks", ())):
                yield FilestoreInstance(self.session, self.tags, each)

    def load_balancers(self) -> Iterator[Resource]:
        """Yield what Services of the type LoadBalancer consist of, with their rules.

        The firewall rule is the last: by it, which is in the cluster's network, the rest is known.
        """
        firewalls = [each for each in self._listed("firewalls") if self._in_network(each)]
        for each in firewalls:
            yield OrphanedCompute(self.session, self.tags, each, "firewalls", "firewall", (NETWORK,))
        services = {
            found[1]: each["name"] for each in firewalls if (found := _OF_SERVICE.fullmatch(each["name"]))
        }

        def mine(each: dict) -> bool:
            return each["name"] in services or self._labelled(each) or self._in_network(each)

        pools = [each for each in self._listed("targetPools") if mine(each)]
        for each in pools:
            yield OrphanedCompute(
                self.session, self.tags, each, "targetPools", "targetPool", self._behind(each, services)
            )
        for each in filter(mine, self._listed("forwardingRules")):
            behind = self._behind(each, services)
            pool = tuple(_named("targetPool", one["name"]) for one in pools if one["name"] == each["name"])
            yield OrphanedCompute(
                self.session, self.tags, each, "forwardingRules", "forwardingRule", (*pool, *behind)
            )
        for each in filter(mine, self._listed("addresses")):
            behind = self._behind(each, services)
            yield OrphanedCompute(self.session, self.tags, each, "addresses", "address", behind)
        for each in filter(self._in_network, self._listed("networkEndpointGroups")):
            depends_on = ("subnet", NETWORK)
            singular = "networkEndpointGroup"
            yield OrphanedCompute(
                self.session, self.tags, each, "networkEndpointGroups", singular, depends_on
            )

    def _behind(self, each: dict, services: dict[str, str]) -> tuple[str, ...]:
        firewall = services.get(each["name"])
        return ("subnet", *([_named("firewall", firewall)] if firewall else []))

    def _listed(self, collection: str) -> Iterator[dict]:
        project = self.session.project
        if collection == "firewalls":
            yield from self.session.every("compute", "firewalls.list", "items", project=project)
            return
        for scope in self.session.every("compute", f"{collection}.aggregatedList", "items", project=project):
            yield from scope.get(collection, ())

    def _labelled(self, each: dict) -> bool:
        whose = tags_.read(each.get("labels") or {})
        return whose is not None and whose.cluster == self.tags.cluster

    def _in_network(self, each: dict) -> bool:
        network = each.get("network", "")
        return self.network is not None and f"/{network}".endswith(self.network)


def _named(singular: str, name: str) -> str:
    words = re.sub(r"([A-Z])", lambda letter: f" {letter[1].lower()}", singular)
    return f"{words} {name}"
