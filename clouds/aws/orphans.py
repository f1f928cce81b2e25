"""What Kubernetes made at AWS and did not take back: load balancers, their groups, disks, network cards.

It is told by Kubernetes's own tags, and only in the cluster's own network; disks, which are in no network,
only if they are younger than the cluster. All of it is deleted once the cluster is gone: who would make it
anew is gone with it.
"""

from abc import abstractmethod
from collections.abc import Mapping

from clouds.aws.network import Vpc
from clouds.aws.plan import AwsResource, EksPlan, as_dict
from clouds.aws.roles import Role
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus

MOST_AT_ONCE = 20  # load balancers whose tags one request tells


class Orphans(AwsResource):
    """Things of one kind that Kubernetes left."""

    def __init__(self, plan: EksPlan, name: str, vpc: Vpc, depends_on: tuple[str, ...] = ()) -> None:
        super().__init__(plan, name, (vpc.name, *depends_on))
        self.vpc = vpc
        self.tag = f"kubernetes.io/cluster/{plan.cluster}"
        self.tags = plan.tags

    @abstractmethod
    def left(self) -> list[str]:
        """Return the ids of those that are there."""

    @abstractmethod
    def remove(self, identity: str) -> None:
        """Delete one."""

    def describe(self) -> ResourceStatus:
        found = self.left()
        return self.seen(ResourceState.PARTIAL, " ".join(found)) if found else ABSENT

    def create(self) -> None:
        """Do nothing: Kubernetes makes them."""

    def delete(self) -> None:
        for each in self.left():
            self.remove(each)

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: their tags are Kubernetes's."""

    def inside(self) -> list[dict]:
        """Return the filter for what is in the cluster's network; empty if there is no network."""
        vpc = self.vpc.describe().id
        return [{"Name": "vpc-id", "Values": [vpc]}] if vpc else []


class OrphanedLoadBalancers(Orphans):
    """Those of Services and Ingresses, new and classic, with their target groups."""

    kind = "AWS::ElasticLoadBalancingV2::LoadBalancer"
    hourly_cost = "0.023 $ an hour each, and traffic"

    def __init__(self, plan: EksPlan, vpc: Vpc, depends_on: tuple[str, ...]) -> None:
        super().__init__(plan, "load balancers of Services", vpc, depends_on)

    def left(self) -> list[str]:
        vpc = self.vpc.describe().id
        if not vpc:
            return []
        found = []
        every = self.session.every("elbv2", "describe_load_balancers", "LoadBalancers")
        arns = [each["LoadBalancerArn"] for each in every if each.get("VpcId") == vpc]
        every = self.session.every("elbv2", "describe_target_groups", "TargetGroups")
        arns += [each["TargetGroupArn"] for each in every if each.get("VpcId") == vpc]
        for some in _parts(arns):
            told = self.session.call("elbv2", "describe_tags", ResourceArns=some)["TagDescriptions"]
            found += [each["ResourceArn"] for each in told if self._marked(each)]
        every = self.session.every("elb", "describe_load_balancers", "LoadBalancerDescriptions")
        classic = [each["LoadBalancerName"] for each in every if each.get("VPCId") == vpc]
        for some in _parts(classic):
            told = self.session.call("elb", "describe_tags", LoadBalancerNames=some)["TagDescriptions"]
            found += [each["LoadBalancerName"] for each in told if self._marked(each)]
        return sorted(found)  # load balancers come before the target groups that they use

    def remove(self, identity: str) -> None:
        if ":targetgroup/" in identity:
            self.session.find("elbv2", "delete_target_group", TargetGroupArn=identity)
        elif identity.startswith("arn:"):
            self.session.find("elbv2", "delete_load_balancer", LoadBalancerArn=identity)
        else:
            self.session.find("elb", "delete_load_balancer", LoadBalancerName=identity)

    def _marked(self, described: Mapping) -> bool:
        tags = as_dict(described["Tags"])
        return self.tag in tags or tags.get("elbv2.k8s.aws/cluster") == self.plan.cluster


class OrphanedNetworkInterfaces(Orphans):
    """Those that machines and load balancers no longer use."""

    kind = "AWS::EC2::NetworkInterface"

    def __init__(self, plan: EksPlan, vpc: Vpc, depends_on: tuple[str, ...]) -> None:
        super().__init__(plan, "network interfaces of nodes", vpc, depends_on)

    def left(self) -> list[str]:
        inside = self.inside()
        if not inside:
            return []
        unused = [*inside, {"Name": "status", "Values": ["available"]}]
        every = self.session.every("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=unused)
        return [each["NetworkInterfaceId"] for each in every if self._marked(as_dict(each.get("TagSet")))]

    def remove(self, identity: str) -> None:
        self.session.find("ec2", "delete_network_interface", NetworkInterfaceId=identity)

    def _marked(self, tags: Mapping[str, str]) -> bool:
        mine = tags.get("cluster.k8s.amazonaws.com/name") == self.plan.cluster
        return mine or self.tag in tags or "node.k8s.amazonaws.com/instance_id" in tags


class OrphanedSecurityGroups(Orphans):
    """The security groups of load balancers, and that of EKS where it stayed."""

    kind = "AWS::EC2::SecurityGroup"

    def __init__(self, plan: EksPlan, vpc: Vpc) -> None:
        super().__init__(plan, "security groups of Kubernetes", vpc)

    def left(self) -> list[str]:
        return [each["GroupId"] for each in self._found()]

    def remove(self, identity: str) -> None:
        self.session.find("ec2", "delete_security_group", GroupId=identity)

    def delete(self) -> None:
        for each in self._found():  # those that name each other hold each other
            naming = [rule for rule in each["IpPermissions"] if rule.get("UserIdGroupPairs")]
            if naming:
                self.session.find(
                    "ec2", "revoke_security_group_ingress", GroupId=each["GroupId"], IpPermissions=naming
                )
        super().delete()

    def _found(self) -> list[dict]:
        inside = self.inside()
        if not inside:
            return []
        marked = [*inside, {"Name": "tag-key", "Values": [self.tag]}]
        return list(self.session.every("ec2", "describe_security_groups", "SecurityGroups", Filters=marked))


class OrphanedVolumes(Orphans):
    """Those of volumes whose claims nobody deleted, and that nothing uses."""

    kind = "AWS::EC2::Volume"
    hourly_cost = "0.08 $ a GB and month"

    def __init__(self, plan: EksPlan, vpc: Vpc, role: Role) -> None:
        super().__init__(plan, "disks of volumes", vpc, (role.name,))
        self.role = role

    def left(self) -> list[str]:
        filters = [
            {"Name": "tag-key", "Values": [self.tag]},
            {"Name": "status", "Values": ["available"]},
        ]
        every = list(self.session.every("ec2", "describe_volumes", "Volumes", Filters=filters))
        begun = self.role.created() if every else None
        return [each["VolumeId"] for each in every if begun and each["CreateTime"] >= begun]

    def remove(self, identity: str) -> None:
        self.session.find("ec2", "delete_volume", VolumeId=identity)


def orphans(plan: EksPlan, vpc: Vpc, role: Role, *, holds: tuple[str, ...]) -> list[Orphans]:
    """Return all kinds.

    Args:
        plan: The cluster.
        vpc: Its network.
        role: Made before all that could have left something.
        holds: The names of what they keep from being deleted: subnets, gateways.
    """
    balancers = OrphanedLoadBalancers(plan, vpc, holds)
    cards = OrphanedNetworkInterfaces(plan, vpc, holds)
    groups = OrphanedSecurityGroups(plan, vpc)
    # Taken down in the order in which one lets go of the next.
    balancers.depends_on += (cards.name, groups.name)
    cards.depends_on += (groups.name,)
    return [balancers, cards, groups, OrphanedVolumes(plan, vpc, role)]


def _parts(names: list[str]) -> list[list[str]]:
    return [names[begin : begin + MOST_AT_ONCE] for begin in range(0, len(names), MOST_AT_ONCE)]
