"""What EC2 and others do that moto leaves out: they refuse to delete what is in use. And what others leave.

A check raises before moto answers; a consequence follows when it has.
"""

from collections.abc import Callable
from typing import Any

from moto.ec2.models import ec2_backends
from moto.elb.models import elb_backends
from moto.elbv2.models import elbv2_backends
from moto.scheduler.models import scheduler_backends

from .faults import ACCOUNT, Refused
from .wire import Question

Act = Callable[[Question], None]
BALANCER = "ELB"  # begins the description of a load balancer's interfaces


def _ec2(region: str) -> Any:
    return ec2_backends[ACCOUNT][region]


def _vpc_is_empty(question: Question) -> None:
    vpc, ec2 = question.parameters["VpcId"], _ec2(question.region)
    inside = [item for item in ec2.groups.get(vpc, {}).values() if item.name != "default"]
    inside += [gateway for gateway in ec2.internet_gateways.values() if gateway.vpc and gateway.vpc.id == vpc]
    inside += [eni for eni in ec2.enis.values() if eni.subnet.vpc_id == vpc]
    inside += [subnet for zone in ec2.subnets.values() for subnet in zone.values() if subnet.vpc_id == vpc]
    if inside:
        raise Refused("DependencyViolation", f"The vpc '{vpc}' has dependencies and cannot be deleted.")


def _subnet_is_empty(question: Question) -> None:
    subnet = question.parameters["SubnetId"]
    if any(eni.subnet.id == subnet for eni in _ec2(question.region).enis.values()):
        raise Refused("DependencyViolation", f"The subnet '{subnet}' has dependencies and cannot be deleted.")


def _group_is_unused(question: Question) -> None:
    group, ec2 = question.parameters.get("GroupId"), _ec2(question.region)
    used = any(group in [item.id for item in eni.group_set] for eni in ec2.enis.values())
    other_groups = [item for groups in ec2.groups.values() for item in groups.values() if item.id != group]
    rules = [rule for group in other_groups for rule in (*group.ingress_rules, *group.egress_rules)]
    if used or any(rule.source_group.get("GroupId") == group for rule in rules):
        raise Refused("DependencyViolation", f"resource {group} has a dependent object")


def _no_public_addresses(question: Question) -> None:
    vpc = question.parameters["VpcId"]
    for eni in _ec2(question.region).enis.values():
        public = str(eni.subnet.map_public_ip_on_launch).lower() == "true" and not eni.description
        if eni.subnet.vpc_id == vpc and (public or eni.public_ip or eni.description.startswith(BALANCER)):
            words = f"Network {vpc} has some mapped public address(es). Please unmap those first."
            raise Refused("DependencyViolation", words)


def _group_is_free(question: Question) -> None:
    name = question.parameters["Name"]
    if name in scheduler_backends[ACCOUNT][question.region].schedule_groups:
        raise Refused("ConflictException", f"Schedule group {name} already exists.", status=409)


def _nat_gateway_goes(question: Question) -> None:
    ec2 = _ec2(question.region)
    card = ec2.nat_gateways[question.parameters["NatGatewayId"]]._eni.id
    ec2.enis.pop(card, None)
    for address in ec2.addresses:
        if address.eni is not None and address.eni.id == card:
            address.association_id = address.eni = None


def _balancer_comes(question: Question) -> None:
    """Have the interfaces by which a load balancer is in its subnets."""
    ec2 = _ec2(question.region)
    parameters = question.parameters
    name = parameters.get("Name") or parameters["LoadBalancerName"]
    for subnet in parameters.get("Subnets", ()):
        about = {"group_ids": parameters.get("SecurityGroups") or [], "description": f"{BALANCER} {name}"}
        card = ec2.create_network_interface(ec2.get_subnet(subnet), [], **about)
        card.requester_managed, card.status = True, "in-use"


def _balancers_go(question: Question) -> None:
    ec2 = _ec2(question.region)
    names = [balancer.name for balancer in elb_backends[ACCOUNT][question.region].load_balancers.values()]
    names += [balancer.name for balancer in elbv2_backends[ACCOUNT][question.region].load_balancers.values()]
    for eni in list(ec2.enis.values()):
        if eni.description.startswith(BALANCER) and eni.description[len(BALANCER) + 1 :] not in names:
            ec2.enis.pop(eni.id)


BEFORE: dict[str, Act] = {
    "ec2:DeleteVpc": _vpc_is_empty,
    "ec2:DeleteSubnet": _subnet_is_empty,
    "ec2:DeleteSecurityGroup": _group_is_unused,
    "ec2:DetachInternetGateway": _no_public_addresses,
    "scheduler:CreateScheduleGroup": _group_is_free,
}
AFTER: dict[str, Act] = {
    "ec2:DeleteNatGateway": _nat_gateway_goes,
    "elbv2:CreateLoadBalancer": _balancer_comes,
    "elb:CreateLoadBalancer": _balancer_comes,
    "elbv2:DeleteLoadBalancer": _balancers_go,
    "elb:DeleteLoadBalancer": _balancers_go,
}


def plant(aws: Callable[[str], Any], kind: str, *, vpc: str, subnet: str, cluster: str) -> None:
    """Have what Kubernetes or GuardDuty leaves in the network of a cluster.

    Args:
        aws: Gives clients.
        kind: ``load balancer``, ``classic load balancer``, ``volume``, ``network interface``, ``GuardDuty``.
    """
    ec2, owned = aws("ec2"), {f"kubernetes.io/cluster/{cluster}": "owned"}

    def tagged(what: str, **tags: str) -> list[dict[str, Any]]:
        return [{"ResourceType": what, "Tags": [{"Key": key, "Value": tag} for key, tag in tags.items()]}]

    def group(name: str, **tags: str) -> str:
        tags_of_group = tagged("security-group", **tags)
        new_group = ec2.create_security_group(
            GroupName=name, Description=name, VpcId=vpc, TagSpecifications=tags_of_group
        )
        return new_group["GroupId"]

    if kind == "volume":
        zone = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailabilityZone"]
        tags_of_kind = tagged("volume", **owned, **{"trainyard:kit": "true", "trainyard:cluster": cluster})
        ec2.create_volume(AvailabilityZone=zone, Size=1, TagSpecifications=tags_of_kind)
    elif kind == "network interface":
        tags_of_kind = tagged(kind.replace(" ", "-"), **{"cluster.k8s.amazonaws.com/name": cluster})
        ec2.create_network_interface(
            SubnetId=subnet, Description="aws-K8S-i-0", TagSpecifications=tags_of_kind
        )
    elif kind == "GuardDuty":
        guard = {"GuardDutyManaged": "true"}
        parameters = {"SecurityGroupIds": [group(f"GuardDutyManagedSecurityGroup-{vpc}", **guard)]}
        parameters |= {"TagSpecifications": tagged("vpc-endpoint", **guard), "VpcEndpointType": "Interface"}
        service = f"com.amazonaws.{ec2.meta.region_name}.guardduty-data"
        ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=service, SubnetIds=[subnet], **parameters)
    else:
        parameters = {"Subnets": [subnet], "SecurityGroups": [group(f"k8s-{kind.split()[0]}", **owned)]}
        parameters["Tags"] = tagged("", **owned)[0]["Tags"]
        listener = {"Protocol": "TCP", "LoadBalancerPort": 80, "InstancePort": 30080}
        if kind.startswith("classic"):
            aws("elb").create_load_balancer(LoadBalancerName="a1classic", Listeners=[listener], **parameters)
        else:
            aws("elbv2").create_load_balancer(Name="a1balancer", Type="network", **parameters)
