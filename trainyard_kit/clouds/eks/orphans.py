"""Resources in a cluster's network outside its stacks, which would block the deletion of the network.

Kubernetes creates load balancers, network interfaces, security groups and volumes; GuardDuty creates an
endpoint and a security group. Kubernetes' resources are found by its tags in the cluster's VPC, volumes by
the kit's tags, GuardDuty's only in a VPC that the stack created.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks.client_errors import AwsError
from trainyard_kit.clouds.eks.session import AwsSession, as_dict
from trainyard_kit.clouds.price_table import rate
from trainyard_kit.clouds.steps import Steps

POLL_SECONDS, TIMEOUT_SECONDS = 15.0, 300.0
BATCH_SIZE = 20  # load balancers in one request for their tags
# Of each kind the request that lists it, with the fields of items, id and VPC; and the one that deletes it.
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
    """The network in which a cluster's orphans can be.

    Attributes:
        cluster: The cluster's name.
        vpc: Id of its VPC; empty if there is none.
        own: Whether the stack created the VPC.
        alive: Whether the EKS cluster exists, so that its own security group is not an orphan.
    """

    cluster: str
    vpc: str
    own: bool = True
    alive: bool = False

    def owns(self, resource_tags: Mapping[str, str]) -> bool:
        """Whether a resource with these tags belongs to this cluster."""
        if self.own and resource_tags.get("GuardDutyManaged") == "true":
            return True
        names = map(resource_tags.get, ("elbv2.k8s.aws/cluster", "cluster.k8s.amazonaws.com/name"))
        if f"kubernetes.io/cluster/{self.cluster}" in resource_tags or self.cluster in names:
            return not (self.alive and "aws:eks:cluster-name" in resource_tags)
        return self.own and "node.k8s.amazonaws.com/instance_id" in resource_tags


@dataclass(frozen=True)
class Orphan:
    """One such resource: a display name, CloudFormation's type, and the request that deletes it, if any."""

    name: str
    kind: str
    id: str
    costs: str = ""
    request: tuple[str, str, Mapping[str, Any]] | None = None


def find(session: AwsSession, network: Network) -> list[Orphan]:
    """Find the orphans, in the order in which they can be deleted."""
    inside = _inside(session, network) if network.vpc else ()
    return [*inside, *_volumes(session, network.cluster)]


def owners(session: AwsSession) -> set[str]:
    """List the clusters of the region, existing or not, that left volumes of claims."""
    filters = [{"Name": f"tag:{tags.KIT}", "Values": ["true"]}, {"Name": "status", "Values": ["available"]}]
    listed = session.paginate("ec2", "describe_volumes", "Volumes", Filters=filters)
    volume_tags = (tags.read(as_dict(volume.get("Tags"))) for volume in listed)
    return {owner_tags.cluster for owner_tags in volume_tags if owner_tags and owner_tags.cluster}


def clean(session: AwsSession, network: Network, steps: Steps) -> None:
    """Delete the orphans; wait up to five minutes until they are gone. The stack's error names the rest."""
    deadline = steps.clock.now() + TIMEOUT_SECONDS
    while orphans := find(session, network):
        for orphan in orphans:
            try:
                if orphan.request:
                    service, operation, parameters = orphan.request
                    session.find(service, operation, **parameters)
            except AwsError as error:
                if not error.transient:  # transient: in use by one that is deleted first
                    raise
        if steps.clock.now() > deadline:
            return
        steps.sleep(POLL_SECONDS)


def _inside(session: AwsSession, network: Network) -> Iterator[Orphan]:
    in_vpc = {"Filters": [{"Name": "vpc-id", "Values": [network.vpc]}]}
    yield from _balancers(session, network)
    for endpoint in session.paginate("ec2", "describe_vpc_endpoints", "VpcEndpoints", **in_vpc):
        endpoint_id = endpoint["VpcEndpointId"]
        if network.owns(as_dict(endpoint.get("Tags"))) and endpoint["State"] not in ("deleting", "deleted"):
            request = ("ec2", "delete_vpc_endpoints", {"VpcEndpointIds": [endpoint_id]})
            yield Orphan("endpoint", "AWS::EC2::VPCEndpoint", endpoint_id, request=request)
    for interface in session.paginate("ec2", "describe_network_interfaces", "NetworkInterfaces", **in_vpc):
        interface_id, kind = interface["NetworkInterfaceId"], "AWS::EC2::NetworkInterface"
        if interface["Status"] == "available" and network.owns(as_dict(interface.get("TagSet"))):
            request = ("ec2", "delete_network_interface", {"NetworkInterfaceId": interface_id})
            yield Orphan("network interface of a node", kind, interface_id, request=request)
        elif network.own and interface.get("Description", "").startswith("ELB "):
            yield Orphan("network interface of a load balancer", kind, interface_id)  # deleted with it
    for group in session.paginate("ec2", "describe_security_groups", "SecurityGroups", **in_vpc):
        if not network.owns(as_dict(group.get("Tags"))):
            continue
        key = {"GroupId": group["GroupId"]}
        request = ("ec2", "delete_security_group", key)
        # A group that another group's rules refer to cannot be deleted: revoke those rules first.
        if rules := [rule for rule in group["IpPermissions"] if rule.get("UserIdGroupPairs")]:
            request = ("ec2", "revoke_security_group_ingress", {**key, "IpPermissions": rules})
        yield Orphan("security group", "AWS::EC2::SecurityGroup", group["GroupId"], request=request)


def _balancers(session: AwsSession, network: Network) -> Iterator[Orphan]:
    for (service, listing, key, identity, vpc), delete, kind in BALANCERS:
        balancers = session.paginate(service, listing, key)
        names = [resource[identity] for resource in balancers if resource.get(vpc) == network.vpc]
        for batch in (names[begin : begin + BATCH_SIZE] for begin in range(0, len(names), BATCH_SIZE)):
            if service == "elb":
                answer = session.call("elb", "describe_tags", LoadBalancerNames=batch)
            else:
                answer = session.call("elbv2", "describe_tags", ResourceArns=batch)
            for description in answer["TagDescriptions"]:
                if network.owns(as_dict(description["Tags"])):
                    balancer_id = description.get("ResourceArn") or description["LoadBalancerName"]
                    group = key == "TargetGroups"
                    costs = "" if group else f"{rate('amazon', 'load balancer')}, and traffic"
                    name = "target group" if group else "load balancer of a Service"
                    yield Orphan(name, kind, balancer_id, costs, (*delete, {identity: balancer_id}))


def _volumes(session: AwsSession, cluster: str) -> Iterator[Orphan]:
    selector = {f"tag:{tags.KIT}": "true", f"tag:{tags.CLUSTER}": cluster, "status": "available"}
    filters = [{"Name": key, "Values": [value]} for key, value in selector.items()]
    for volume in session.paginate("ec2", "describe_volumes", "Volumes", Filters=filters):
        id_, costs = volume["VolumeId"], rate("amazon", "EBS gp3")
        request = ("ec2", "delete_volume", {"VolumeId": id_})
        yield Orphan("volume of a claim", "AWS::EC2::Volume", id_, costs, request)
