"""What exists in the account, in all services and regions: for "nothing is left".

What every account has is not counted: the default network of each region, Amazon's own policies, the default
groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from moto.core.base_backend import BackendDict

from .identities import ACCOUNT


@dataclass(frozen=True)
class Left:
    """One thing that exists."""

    service: str
    kind: str
    id: str
    region: str
    tags: dict[str, str] = field(default_factory=dict, compare=False, hash=False)

    def __str__(self) -> str:
        return f"{self.service} {self.kind} {self.id} ({self.region})"


def everything() -> list[Left]:
    """Return all that exists."""
    found: list[Left] = []
    for services in list(BackendDict._instances):
        if ACCOUNT not in services:
            continue
        for region, backend in list(services[ACCOUNT].items()):
            look = LOOKS.get(backend.__class__.__name__)
            if look is not None:
                found.extend(look(backend, region))
    return sorted(found, key=str)


def _eks(backend: Any, region: str) -> Iterator[Left]:
    for cluster in backend.clusters.values():
        for kind, arn, data in cluster.things():
            yield Left("eks", kind.removeprefix("eks:"), arn, region, dict(data.get("tags", {})))


def _ec2(backend: Any, region: str) -> Iterator[Left]:
    mine = {each.id for each in backend.vpcs.values() if not _yes(each.is_default)}
    things: list[tuple[str, Any]] = [("vpc", each) for each in backend.vpcs.values() if each.id in mine]
    things += [
        ("subnet", each) for zone in backend.subnets.values() for each in zone.values() if each.vpc_id in mine
    ]
    things += [
        ("security-group", each)
        for vpc, groups in backend.groups.items()
        for each in groups.values()
        if each.name != "default" and (vpc in mine or each.name != "default")
    ]
    things += [
        ("internet-gateway", each)
        for each in backend.internet_gateways.values()
        if not each.vpc or each.vpc.id in mine
    ]
    things += [
        ("route-table", each)
        for each in backend.route_tables.values()
        if each.vpc_id in mine and not each.main_association_id
    ]
    things += [("natgateway", each) for each in backend.nat_gateways.values() if each.state != "deleted"]
    things += [("elastic-ip", each) for each in backend.addresses]
    things += [("network-interface", each) for each in backend.enis.values()]
    things += [("volume", each) for each in backend.volumes.values()]
    things += [("key-pair", each) for each in backend.key_pairs.values()]
    things += [("launch-template", each) for each in backend.launch_templates.values()]
    things += [("vpc-endpoint", each) for each in backend.vpc_end_points.values() if each.state != "deleted"]
    things += [
        ("instance", each)
        for reservation in backend.reservations.values()
        for each in reservation.instances
        if each._state.name != "terminated"
    ]
    for kind, each in things:
        name = getattr(each, "id", None) or getattr(each, "allocation_id", None) or each.name
        yield Left("ec2", kind, name, region, dict(backend.tags.get(name, {})))


def _iam(backend: Any, region: str) -> Iterator[Left]:
    for each in backend.roles.values():
        yield Left("iam", "role", each.name, region, _pairs(each.tags))
    for each in backend.managed_policies.values():
        if f"::{ACCOUNT}:" in each.arn:
            yield Left("iam", "policy", each.arn, region, _pairs(each.tags))
    for each in backend.instance_profiles.values():
        yield Left("iam", "instance-profile", each.name, region)
    for arn in backend.open_id_providers:
        yield Left("iam", "oidc-provider", arn, region)


def _efs(backend: Any, region: str) -> Iterator[Left]:
    for name in backend.file_systems_by_id:
        tags = {each["Key"]: each["Value"] for each in backend.list_tags_for_resource(name)}
        yield Left("efs", "file-system", name, region, tags)
    for name in backend.mount_targets_by_id:
        yield Left("efs", "mount-target", name, region)
    for name in backend.access_points:
        yield Left("efs", "access-point", name, region)


def _scheduler(backend: Any, region: str) -> Iterator[Left]:
    for group in backend.schedule_groups.values():
        if group.name != "default":
            tags = backend.tagger.get_tag_dict_for_resource(group.arn)
            yield Left("scheduler", "schedule-group", group.name, region, tags)
        for name in group.schedules:
            yield Left("scheduler", "schedule", f"{group.name}/{name}", region)


def _named(service: str, kind: str, collection: str) -> Any:
    def look(backend: Any, region: str) -> Iterator[Left]:
        found = getattr(backend, collection)
        for name in found:
            yield Left(service, kind, str(name), region)

    return look


LOOKS = {
    "EksBackend": _eks,
    "EC2Backend": _ec2,
    "IAMBackend": _iam,
    "EFSBackend": _efs,
    "EventBridgeSchedulerBackend": _scheduler,
    "S3Backend": _named("s3", "bucket", "buckets"),
    "ECRBackend": _named("ecr", "repository", "repositories"),
    "LogsBackend": _named("logs", "log-group", "groups"),
    "ELBBackend": _named("elb", "load-balancer", "load_balancers"),
    "ELBv2Backend": _named("elbv2", "load-balancer", "load_balancers"),
    "CodeBuildBackend": _named("codebuild", "project", "codebuild_projects"),
    "CloudFormationBackend": _named("cloudformation", "stack", "stacks"),
}


def _pairs(tags: Any) -> dict[str, str]:
    if isinstance(tags, dict):
        return {key: each["Value"] if isinstance(each, dict) else each for key, each in tags.items()}
    return {each["Key"]: each["Value"] for each in tags or []}


def _yes(value: Any) -> bool:
    return str(value).lower() == "true"
