"""What others created in a cluster's network, and CloudFormation does not know: it would keep the network.

Kubernetes creates load balancers, network interfaces, security groups and volumes; GuardDuty creates an
endpoint and a security group. Kubernetes' are found by its tags, in the cluster's VPC only; volumes by the
kit's own tags; GuardDuty's only in a VPC that the stack created.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks.client_errors import AwsError
from trainyard_kit.clouds.eks.session import AwsSession, as_dict
from trainyard_kit.clouds.price_table import rate
from trainyard_kit.clouds.steps import Steps

POLL, PATIENCE = 15.0, 300.0
MAX_AT_ONCE = 20  # load balancers whose tags one request tells
# How each kind is listed, with the members of the answer, of the id and of the VPC; and how it is deleted.
BALANCERS = (
    (
        ("elbv2", "describe_load_balancers", "LoadBalancers", "LoadBalancerArn", "VpcId"),
        ("elbv2", "delete_load_balancer"),
        "AWS::ElasticLoadBalancingV2::LoadBalancer",
    ),
    (
        ("elbv2", "describe_target_groups", "TargetGroups", "TargetGroupArn", "VpcId"),
        ("elbv2", "delete_target_group"),
        "AWS::ElasticLoadBalancingV2::TargetGroup",
    ),
    (
        ("elb", "describe_load_balancers", "LoadBalancerDescriptions", "LoadBalancerName", "VPCId"),
        ("elb", "delete_load_balancer"),
        "AWS::ElasticLoadBalancing::LoadBalancer",
    ),
)


@dataclass(frozen=True)
class Network:
    """Where a cluster's orphans can be.

    Attributes:
        cluster: Its name.
        vpc: Id of its VPC; empty where there is none.
        own: Whether the stack created the VPC.
        alive: Whether the EKS cluster exists: its own security group is no orphan then.
    """

    cluster: str
    vpc: str
    own: bool = True
    alive: bool = False

    def marks(self, resource_tags: Mapping[str, str]) -> bool:
        """Whether these tags are Kubernetes' for this cluster."""
        if self.own and resource_tags.get("GuardDutyManaged") == "true":
            return True
        named = resource_tags.get("elbv2.k8s.aws/cluster") or resource_tags.get(
            "cluster.k8s.amazonaws.com/name"
        )
        if f"kubernetes.io/cluster/{self.cluster}" in resource_tags or named == self.cluster:
            return not (self.alive and "aws:eks:cluster-name" in resource_tags)
        return self.own and "node.k8s.amazonaws.com/instance_id" in resource_tags


@dataclass(frozen=True)
class Orphan:
    """One of them: its name for people, CloudFormation's kind, and the request that deletes it, if any."""

    name: str
    kind: str
    id: str
    costs: str = ""
    request: tuple[str, str, Mapping[str, Any]] | None = None


def find(session: AwsSession, network: Network) -> list[Orphan]:
    """Find them, in the order in which one lets go of the next."""
    inside = _inside(session, network) if network.vpc else ()
    return [*inside, *_volumes(session, network.cluster)]


def owners(session: AwsSession) -> set[str]:
    """List the clusters of the region, existing or not, of which volumes of claims are left."""
    filters = [{"Name": f"tag:{tags.KIT}", "Values": ["true"]}, {"Name": "status", "Values": ["available"]}]
    listed = session.every("ec2", "describe_volumes", "Volumes", Filters=filters)
    volume_tags = (tags.read(as_dict(volume.get("Tags"))) for volume in listed)
    return {owner_tags.cluster for owner_tags in volume_tags if owner_tags and owner_tags.cluster}


def clean(session: AwsSession, network: Network, steps: Steps) -> None:
    """Delete them, and wait until they are gone, for five minutes: what is left then, the stack names."""
    end = steps.clock.now() + PATIENCE
    while resources := find(session, network):
        for resource in resources:
            try:
                if resource.request:
                    service, operation, parameters = resource.request
                    session.find(service, operation, **parameters)
            except AwsError as error:
                if not error.passing:  # in use by another, which goes first
                    raise
        if steps.clock.now() > end:
            return
        steps.sleep(POLL)


def _inside(session: AwsSession, network: Network) -> Iterator[Orphan]:
    here = {"Filters": [{"Name": "vpc-id", "Values": [network.vpc]}]}
    yield from _balancers(session, network)
    for endpoint in session.every("ec2", "describe_vpc_endpoints", "VpcEndpoints", **here):
        endpoint_id = endpoint["VpcEndpointId"]
        if network.marks(as_dict(endpoint.get("Tags"))) and endpoint["State"] not in ("deleting", "deleted"):
            request = ("ec2", "delete_vpc_endpoints", {"VpcEndpointIds": [endpoint_id]})
            yield Orphan("endpoint", "AWS::EC2::VPCEndpoint", endpoint_id, request=request)
    for interface in session.every("ec2", "describe_network_interfaces", "NetworkInterfaces", **here):
        interface_id, kind = interface["NetworkInterfaceId"], "AWS::EC2::NetworkInterface"
        if interface["Status"] == "available" and network.marks(as_dict(interface.get("TagSet"))):
            request = ("ec2", "delete_network_interface", {"NetworkInterfaceId": interface_id})
            yield Orphan("network interface of a node", kind, interface_id, request=request)
        elif network.own and interface.get("Description", "").startswith("ELB "):
            yield Orphan(
                "network interface of a load balancer", kind, interface_id
            )  # which goes with it, a little later
    for group in session.every("ec2", "describe_security_groups", "SecurityGroups", **here):
        if not network.marks(as_dict(group.get("Tags"))):
            continue
        which = {"GroupId": group["GroupId"]}
        request = ("ec2", "delete_security_group", which)
        # Groups whose rules name another hold each other: first the rules go, then the groups.
        if naming := [rule for rule in group["IpPermissions"] if rule.get("UserIdGroupPairs")]:
            request = ("ec2", "revoke_security_group_ingress", {**which, "IpPermissions": naming})
        yield Orphan("security group", "AWS::EC2::SecurityGroup", group["GroupId"], request=request)


def _balancers(session: AwsSession, network: Network) -> Iterator[Orphan]:
    for (service, listing, key, identity, vpc), delete, kind in BALANCERS:
        balancers = session.every(service, listing, key)
        names = [resource[identity] for resource in balancers if resource.get(vpc) == network.vpc]
        for some in (names[begin : begin + MAX_AT_ONCE] for begin in range(0, len(names), MAX_AT_ONCE)):
            if service == "elb":
                answer = session.call("elb", "describe_tags", LoadBalancerNames=some)
            else:
                answer = session.call("elbv2", "describe_tags", ResourceArns=some)
            for description in answer["TagDescriptions"]:
                if network.marks(as_dict(description["Tags"])):
                    balancer_id = description.get("ResourceArn") or description["LoadBalancerName"]
                    group = key == "TargetGroups"
                    costs = "" if group else f"{rate('amazon', 'load balancer')}, and traffic"
                    name = "target group" if group else "load balancer of a Service"
                    yield Orphan(name, kind, balancer_id, costs, (*delete, {identity: balancer_id}))


def _volumes(session: AwsSession, cluster: str) -> Iterator[Orphan]:
    wanted = {f"tag:{tags.KIT}": "true", f"tag:{tags.CLUSTER}": cluster, "status": "available"}
    filters = [{"Name": key, "Values": [value]} for key, value in wanted.items()]
    for volume in session.every("ec2", "describe_volumes", "Volumes", Filters=filters):
        request = ("ec2", "delete_volume", {"VolumeId": volume["VolumeId"]})
        yield Orphan(
            "volume of a claim", "AWS::EC2::Volume", volume["VolumeId"], rate("amazon", "EBS gp3"), request
        )
