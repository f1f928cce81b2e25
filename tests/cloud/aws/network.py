"""What EC2 and EFS do that moto leaves out: they refuse to delete what is in use, and take time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.efs.models import efs_backends

from .calls import Refused
from .identities import ACCOUNT
from .wire import Question

if TYPE_CHECKING:
    from .server import FakeAmazon

Check = Callable[[Question], None]


class Ec2:
    """The checks and consequences, by ``service:Operation``.

    Attributes:
        before: Raise what the service refuses.
        after: What follows from a call that was answered.
        instead: Answers in moto's place, where it is not None.
        offers: Zones by (region, type of machine), where a test says so.
    """

    def __init__(self, amazon: "FakeAmazon") -> None:
        self.amazon = amazon
        self.before: dict[str, list[Check]] = {
            "ec2:DeleteVpc": [_vpc_is_empty],
            "ec2:DeleteSubnet": [_subnet_is_empty],
            "ec2:DeleteSecurityGroup": [_group_is_unused],
            "ec2:AttachInternetGateway": [_vpc_has_no_gateway],
            "ec2:DetachInternetGateway": [_no_public_addresses],
        }
        self.after: dict[str, list[Check]] = {
            "efs:CreateMountTarget": [self._mount_targets_come],
            "efs:CreateFileSystem": [self._file_systems_come],
            "ec2:CreateNatGateway": [self._nat_gateways_come],
            "ec2:DeleteNatGateway": [self._nat_gateway_goes],
        }
        self.instead: dict[str, Callable[[Question], dict[str, Any] | None]] = {
            "ec2:DescribeInstanceTypeOfferings": self._offerings,
            "efs:DeleteMountTarget": self._mount_target_goes,
        }
        self.reset()

    def reset(self) -> None:
        """Forget what was set."""
        self.offers: dict[tuple[str, str], list[str]] = {}

    def _offerings(self, question: Question) -> dict[str, Any] | None:
        if not any(where == question.region for where, _ in self.offers):
            return None
        kind = question.parameters.get("LocationType") or "region"
        filters = {each["Name"]: each["Values"] for each in question.parameters.get("Filters") or []}
        types = filters.get("instance-type") or sorted(
            {name for where, name in self.offers if where == question.region}
            | {each["InstanceType"] for each in INSTANCE_TYPE_OFFERINGS["region"].get(question.region, [])}
        )
        rows = []
        for name in types:
            zones = self.offers.get((question.region, name))
            if zones is None:
                zones = [question.region + letter for letter in "abc"]
            for zone in zones if kind == "availability-zone" else ([question.region] if zones else []):
                if zone in filters.get("location", [zone]):
                    rows.append({"InstanceType": name, "LocationType": kind, "Location": zone})
        return {"InstanceTypeOfferings": rows}

    def _file_systems_come(self, question: Question) -> None:
        for each in efs_backends[ACCOUNT][question.region].file_systems_by_id.values():
            if not hasattr(each, "_seen"):
                each._seen = True
                _later(self.amazon, each, "life_cycle_state", "creating", "available", "file system")

    def _mount_targets_come(self, question: Question) -> None:
        for each in efs_backends[ACCOUNT][question.region].mount_targets_by_id.values():
            if not hasattr(each, "_seen"):
                each._seen = True
                _later(self.amazon, each, "life_cycle_state", "creating", "available", "mount target")

    def _mount_target_goes(self, question: Question) -> dict[str, Any] | None:
        efs = efs_backends[ACCOUNT][question.region]
        name = question.parameters["MountTargetId"]
        found = efs.mount_targets_by_id.get(name)
        if found is None:
            return None
        if found.life_cycle_state != "deleting":
            found.life_cycle_state = "deleting"
            self.amazon.clock.after(
                self.amazon.waits["mount target gone"],
                lambda: name in efs.mount_targets_by_id and efs.delete_mount_target(name),
            )
        return {}

    def _nat_gateways_come(self, question: Question) -> None:
        for each in ec2_backends[ACCOUNT][question.region].nat_gateways.values():
            if not hasattr(each, "_seen"):
                each._seen = True
                _later(self.amazon, each, "state", "pending", "available", "NAT gateway")

    def _nat_gateway_goes(self, question: Question) -> None:
        ec2 = ec2_backends[ACCOUNT][question.region]
        found = ec2.nat_gateways[question.parameters["NatGatewayId"]]
        found.state = "deleting"

        def gone() -> None:
            found.state = "deleted"
            ec2.enis.pop(found._eni.id, None)
            for address in ec2.addresses:
                if address.eni is not None and address.eni.id == found._eni.id:
                    address.association_id = address.eni = None

        self.amazon.clock.after(self.amazon.waits["NAT gateway gone"], gone)


def _later(amazon: "FakeAmazon", thing: Any, attribute: str, first: str, then: str, kind: str) -> None:
    setattr(thing, attribute, first)

    def done() -> None:
        if getattr(thing, attribute) == first:
            setattr(thing, attribute, then)

    amazon.clock.after(amazon.waits[kind], done)


def _interfaces(region: str) -> list[Any]:
    return list(ec2_backends[ACCOUNT][region].enis.values())


def _vpc_is_empty(question: Question) -> None:
    vpc, ec2 = question.parameters["VpcId"], ec2_backends[ACCOUNT][question.region]
    groups = [each for each in ec2.groups.get(vpc, {}).values() if each.name != "default"]
    gateways = [each for each in ec2.internet_gateways.values() if each.vpc and each.vpc.id == vpc]
    inside = [each for each in _interfaces(question.region) if each.subnet.vpc_id == vpc]
    subnets = [each for zone in ec2.subnets.values() for each in zone.values() if each.vpc_id == vpc]
    if groups or gateways or inside or subnets:
        raise Refused("DependencyViolation", f"The vpc '{vpc}' has dependencies and cannot be deleted.")


def _subnet_is_empty(question: Question) -> None:
    subnet = question.parameters["SubnetId"]
    if any(each.subnet.id == subnet for each in _interfaces(question.region)):
        raise Refused("DependencyViolation", f"The subnet '{subnet}' has dependencies and cannot be deleted.")


def _group_is_unused(question: Question) -> None:
    group = question.parameters.get("GroupId")
    ec2 = ec2_backends[ACCOUNT][question.region]
    used = any(group in [each.id for each in eni.group_set] for eni in _interfaces(question.region))
    named = any(
        rule.source_group.get("GroupId") == group
        for groups in ec2.groups.values()
        for other in groups.values()
        if other.id != group
        for rule in (*other.ingress_rules, *other.egress_rules)
    )
    if used or named:
        raise Refused("DependencyViolation", f"resource {group} has a dependent object")


def _vpc_has_no_gateway(question: Question) -> None:
    vpc = question.parameters["VpcId"]
    gateways = ec2_backends[ACCOUNT][question.region].internet_gateways.values()
    if any(each.vpc and each.vpc.id == vpc for each in gateways):
        raise Refused("InvalidParameterValue", f"Network {vpc} already has an internet gateway attached")


def _no_public_addresses(question: Question) -> None:
    vpc = question.parameters["VpcId"]
    for each in _interfaces(question.region):
        if each.subnet.vpc_id == vpc and (
            each.public_ip
            or str(each.subnet.map_public_ip_on_launch).lower() == "true"
            and each.description == ""
        ):
            words = f"Network {vpc} has some mapped public address(es). Please unmap those first."
            raise Refused("DependencyViolation", words)
