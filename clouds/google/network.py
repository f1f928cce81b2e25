"""The network in which a cluster's machines are: its own, so that all that is in it is the cluster's.

Firewall rules, routes and address ranges in it are GKE's business; those that Kubernetes leaves behind are in
`leftovers`.
"""

from clouds.google.accounts import ANCHOR
from clouds.google.owned import GcpResource, description_of, raise_failure
from clouds.google.session import GcpSession, find
from clouds.reconciler.resource import ResourceState, ResourceStatus
from clouds.tags import Tags

RANGE = "10.10.0.0/20"  # of the machines; GKE takes ranges of its own for pods and services


def network_of(cluster: str) -> str:
    """Name the network of a cluster."""
    return f"trainyard-{cluster}"


class ComputeResource(GcpResource):
    """A thing of Compute Engine, whose operations end with its own kind of error."""

    poll = 5.0
    region = ""  # set where its operations are a region's

    def under_way(self) -> bool:
        if not self.operation:
            return False
        where = {"region": self.region} if self.region else {}
        method = "regionOperations.get" if self.region else "globalOperations.get"
        now = find(
            self.session.rest,
            "compute",
            method,
            project=self.session.project,
            operation=self.operation,
            **where,
        )
        if now is not None and now["status"] != "DONE":
            return True
        self.operation = ""
        raise_failure((now or {}).get("error"), self.id, self.session.project)
        return False


class VpcNetwork(ComputeResource):
    """A VPC network without subnets of Google's choice."""

    name, kind, depends_on = "network", "compute.googleapis.com/Network", (ANCHOR,)
    expected, expected_gone = 30.0, 40.0

    @property
    def id(self) -> str:
        return f"projects/{self.session.project}/global/networks/{network_of(self.tags.cluster)}"

    def found(self):
        network = network_of(self.tags.cluster)
        return find(
            self.session.rest, "compute", "networks.get", project=self.session.project, network=network
        )

    def create(self) -> None:
        body = {
            "name": network_of(self.tags.cluster),
            "description": description_of(self.tags, self.session.zone),
            "autoCreateSubnetworks": False,
            "routingConfig": {"routingMode": "REGIONAL"},
        }

        def request() -> None:
            begun = self.session.rest("compute", "networks.insert", project=self.session.project, body=body)
            self.operation = begun["name"]

        self.send_create(request)

    def remove(self) -> None:
        network = network_of(self.tags.cluster)
        begun = self.session.rest("compute", "networks.delete", project=self.session.project, network=network)
        self.operation = begun["name"]

    def seen(self, found) -> ResourceStatus:
        return ResourceStatus(ResourceState.READY, self.id)


class Subnetwork(ComputeResource):
    """The part of the network that is in the cluster's region."""

    name, kind, depends_on = "subnet", "compute.googleapis.com/Subnetwork", ("network",)
    expected, expected_gone = 20.0, 20.0

    def __init__(self, session: GcpSession, tags: Tags, region: str) -> None:
        super().__init__(session, tags)
        self.region = region

    @property
    def id(self) -> str:
        project, subnet = self.session.project, network_of(self.tags.cluster)
        return f"projects/{project}/regions/{self.region}/subnetworks/{subnet}"

    def found(self):
        return find(
            self.session.rest,
            "compute",
            "subnetworks.get",
            project=self.session.project,
            region=self.region,
            subnetwork=network_of(self.tags.cluster),
        )

    def create(self) -> None:
        network = network_of(self.tags.cluster)
        body = {
            "name": network,
            "description": description_of(self.tags, self.session.zone),
            "network": f"projects/{self.session.project}/global/networks/{network}",
            "ipCidrRange": RANGE,
            "privateIpGoogleAccess": True,
        }

        def request() -> None:
            begun = self.session.rest(
                "compute",
                "subnetworks.insert",
                project=self.session.project,
                region=self.region,
                body=body,
            )
            self.operation = begun["name"]

        self.send_create(request)

    def remove(self) -> None:
        begun = self.session.rest(
            "compute",
            "subnetworks.delete",
            project=self.session.project,
            region=self.region,
            subnetwork=network_of(self.tags.cluster),
        )
        self.operation = begun["name"]
