"""What is asked of AWS for one cluster, and how its parts are called; and what all parts share.

A part is found by three tags: the kit's, the cluster's, and its own. Where AWS knows a thing by a name, the
name is made of the cluster's, and the tags prove whose it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from clouds.aws.client_errors import AwsError
from clouds.aws.session import AwsSession
from clouds.reconciler.resource import Resource, ResourceState, ResourceStatus
from clouds.tags import CLUSTER, KIT, Tags, read

RESOURCE = "trainyard:part"
LONGEST_NAME = 24  # a bucket's name holds the account's and the region's as well, in 63 characters
PATH = "/trainyard/"
VERSION = "1.35"
SYSTEM, TRAIN = "system", "train"


@dataclass(frozen=True)
class NodeGroupPlan:
    """A managed node group.

    Attributes:
        name: ``system`` or ``train``.
        instance_type: Of its machines.
        nodes: How many it has at first.
        disk_gb: Of each.
        spot: Whether AWS may take them back, for a lower price.
        gpus: Of each.
        arm: Whether they have ARM processors.
        least: Never fewer than this.
        places: In how many of the cluster's zones there are such machines, from the first on.
    """

    name: str
    instance_type: str
    nodes: int
    disk_gb: int = 50
    spot: bool = False
    gpus: int = 0
    arm: bool = False
    least: int = 0
    places: int = 2

    @property
    def image(self) -> str:
        """The AMI's type, as EKS calls it."""
        kind = "NVIDIA" if self.gpus else "STANDARD"
        return f"AL2023_{'ARM_64' if self.arm else 'x86_64'}_{kind}"


@dataclass(frozen=True)
class EksPlan:
    """A cluster as it shall be.

    Attributes:
        session: The way to AWS.
        tags: On all that is made.
        zones: The two zones of its subnets; the first is where the training nodes can be.
        groups: Its node groups.
        private: Whether nodes have no public address, and reach the internet through a NAT gateway.
        version: Of Kubernetes.
        admins: ARNs of users and roles of IAM that administer it, beside who made it.
        strict: Whether what has the right name and is somebody else's is refused; else it is as if it
            were not there, as listing and deleting want it.
    """

    session: AwsSession
    tags: Tags
    zones: tuple[str, ...] = ("", "")
    groups: tuple[NodeGroupPlan, ...] = field(
        default=(NodeGroupPlan(SYSTEM, "t3.large", 1, least=1), NodeGroupPlan(TRAIN, "m5.xlarge", 2))
    )
    private: bool = False
    version: str = VERSION
    admins: tuple[str, ...] = ()
    strict: bool = True

    @property
    def cluster(self) -> str:
        """Its name."""
        return self.tags.cluster

    def resource_name(self, part: str) -> str:
        """Return the name of a thing that has one in its region."""
        return f"trainyard-{self.cluster}-{part}"

    def role(self, part: str) -> str:
        """Return the name of a role; roles are one account's, in all regions."""
        return f"trainyard-{self.cluster}-{self.session.region}-{part}"

    @cached_property
    def bucket(self) -> str:
        """The name of its bucket: buckets are everybody's."""
        return f"trainyard-{self.session.account}-{self.session.region}-{self.cluster}"

    def arn(self, service: str, rest: str, *, regional: bool = True) -> str:
        """Return the name of a thing in all of AWS."""
        region = self.session.region if regional else ""
        return f"arn:{self.session.partition}:{service}:{region}:{self.session.account}:{rest}"


class AwsResource(Resource):
    """A thing at AWS that belongs to a cluster.

    Args:
        plan: The cluster.
        name: Its own name among the parts.
        depends_on: Those that must be ready before it is made.
    """

    def __init__(self, plan: EksPlan, name: str, depends_on: tuple[str, ...] = ()) -> None:
        self.plan, self.session, self.name, self.depends_on = plan, plan.session, name, depends_on
        self.where = plan.session.region
        self._id = ""

    @property
    def id(self) -> str:
        """AWS's own name of it, looked up once."""
        return self._id or self.describe().id

    def seen(
        self, state: ResourceState, identity: str = "", words: str = "", tags: Mapping | None = None
    ) -> ResourceStatus:
        """Build the status, and keep id and tags."""
        self._id = identity
        self.tags = read(tags) if tags is not None else self.tags
        return ResourceStatus(state, identity, words)

    def written(self, **more: str) -> dict[str, str]:
        """Return the tags that it gets."""
        name = f"trainyard/{self.plan.cluster}/{self.name}"
        return self.plan.tags.amazon() | {RESOURCE: self.name, "Name": name} | more

    def is_ours(self, given: Mapping[str, str]) -> bool:
        """Check whether the tags of what has the right name are those of this cluster.

        Raises:
            AwsError: They are not, and the plan is strict.
        """
        found = read(given)
        if found is not None and found.cluster == self.plan.cluster:
            return True
        if self.plan.strict:
            raise AwsError(
                "it is there already, and it is not the kit's",
                about=f"{self.name} ({self.kind}) of cluster {self.plan.cluster} in {self.where}",
                fix="choose another name for the cluster: what is not the kit's stays as it is",
                code="Foreign",
            )
        return False

    def mark(self, tags: Mapping[str, str]) -> None:
        """Write tags on it, as it stands."""
        raise NotImplementedError(self.kind)


class Ec2Resource(AwsResource):
    """A thing of EC2, which is found by its tags alone.

    Attributes:
        listing: The operation that lists, the member of its answer, and the member with the id.
        word: What tags call its kind.
        others: For the end: the names of all other parts. What has none of them, since somebody spoiled the
            tag, is taken for this part as well.
    """

    listing: tuple[str, str, str]
    word: str
    others: frozenset[str] | None = None

    def found(self) -> list[dict]:
        """Return those that have its tags, by id: one, as a rule."""
        operation, key, identity = self.listing
        wanted = {KIT: "true", CLUSTER: self.plan.cluster}
        if self.others is None:
            wanted[RESOURCE] = self.name
        filters = [{"Name": f"tag:{tag}", "Values": [value]} for tag, value in wanted.items()]
        name = "Filter" if operation == "describe_nat_gateways" else "Filters"
        every = list(self.session.every("ec2", operation, key, **{name: filters}))
        if self.others is not None:
            every = [each for each in every if as_dict(each.get("Tags")).get(RESOURCE) not in self.others]
        return sorted(every, key=lambda each: each[identity])

    def specification(self, **more: str) -> list[dict]:
        """Return its tags as requests that make things have them."""
        return [{"ResourceType": self.word, "Tags": as_list(self.written(**more))}]

    def mark(self, tags: Mapping[str, str]) -> None:
        ids = [each[self.listing[2]] for each in self.found()]
        if ids:
            self.session.call("ec2", "create_tags", Resources=ids, Tags=as_list(tags))


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as most services write them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_dict(tags: list[Mapping[str, str]] | None) -> dict[str, str]:
    """Return tags as a dict, from what most services write."""
    return {each["Key"]: each["Value"] for each in tags or []}
