"""What exists in the account, in all services and regions: for "nothing is left".

What every account has is not counted: the default network of each region, Amazon's own policies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from moto.core.base_backend import BackendDict

from .faults import ACCOUNT

# Of each of moto's backends, its collections, by the word for what is in them.
KEPT = {
    "EFSBackend": {"file-system": "file_systems_by_id", "mount-target": "mount_targets_by_id"},
    "S3Backend": {"bucket": "buckets"},
    "ECRBackend": {"repository": "repositories"},
    "LogsBackend": {"log-group": "groups"},
    "ELBBackend": {"load-balancer": "load_balancers"},
    "ELBv2Backend": {"load-balancer": "load_balancers", "target-group": "target_groups"},
    "IAMBackend": {"role": "roles", "instance-profile": "instance_profiles"},
    "EventBridgeSchedulerBackend": {"schedule-group": "schedule_groups"},
    "EC2Backend": {
        "vpc": "vpcs",
        "internet-gateway": "internet_gateways",
        "natgateway": "nat_gateways",
        "elastic-ip": "addresses",
        "network-interface": "enis",
        "volume": "volumes",
        "launch-template": "launch_templates",
        "vpc-endpoint": "vpc_end_points",
        "subnet": "subnets",
        "security-group": "groups",
        "route-table": "route_tables",
    },
}


@dataclass(frozen=True)
class Left:
    """One thing that exists."""

    service: str
    kind: str
    id: str
    region: str

    def __str__(self) -> str:
        return f"{self.service} {self.kind} {self.id} ({self.region})"


def everything() -> Iterator[Left]:
    """Give all that exists."""
    for services in list(BackendDict._instances):
        for region, backend in list(services[ACCOUNT].items()) if ACCOUNT in services else ():
            name = type(backend).__name__
            if name == "EksBackend":
                for cluster, noun, thing in backend.things:
                    yield Left("eks", noun.lower(), f"{cluster}/{thing}", region)
            for kind, collection in KEPT.get(name, {}).items():
                yield from _each(backend, name.removesuffix("Backend").lower(), region, kind, collection)


def _each(backend: Any, service: str, region: str, kind: str, collection: str) -> Iterator[Left]:
    items = getattr(backend, collection)
    for key, item in list(items.items()) if isinstance(items, dict) else [(None, item) for item in items]:
        for thing in item.values() if collection in ("subnets", "groups") and service == "ec2" else (item,):
            name = getattr(thing, "allocation_id", None) or getattr(thing, "id", None) or key
            if not _everybodys(backend, kind, thing):
                yield Left(service, kind, name if service == "ec2" else getattr(thing, "name", key), region)


def _everybodys(backend: Any, kind: str, thing: Any) -> bool:
    """Return whether an account has it without having asked for it, or it is gone and only remembered."""
    if getattr(thing, "state", "") == "deleted" or "default" in (getattr(thing, "name", ""), kind):
        return True
    if kind == "route-table" and thing.main_association_id:
        return True
    vpc = (
        thing
        if kind == "vpc"
        else backend.vpcs.get(thing.vpc_id)
        if kind in ("subnet", "route-table")
        else None
    )
    return vpc is not None and str(vpc.is_default).lower() == "true"
