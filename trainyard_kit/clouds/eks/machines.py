"""Instance types: their hardware, the zones that offer them, alternatives, and quotas."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kitlib.errors import BadInput
from trainyard_kit.checks import Check, failed, ok, warn
from trainyard_kit.clouds import tags
from trainyard_kit.clouds.cloud_errors import PERMANENT, ErrorReason, classify
from trainyard_kit.clouds.eks.client_errors import AwsError
from trainyard_kit.clouds.eks.session import AwsSession, as_dict
from trainyard_kit.clouds.spec import Machines, read_table

# https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html
ZONES_WITHOUT_EKS = {"use1-az3", "usw1-az2", "cac1-az3"}
VCPU_QUOTA = re.compile(r"vcpu ?limit|MaxSpotInstanceCount|InstanceLimitExceeded", re.I)
FACTS = read_table("machines")["amazon"]


@dataclass(frozen=True)
class InstanceType:
    """An instance type: its name, vCPUs, NVIDIA GPUs, and the network cards with a fabric adapter."""

    name: str
    cpus: int
    gpus: int
    efa: range


def instance_type(session: AwsSession, name: str) -> InstanceType:
    """Look up an instance type; raise BadInput if the region or PyTorch's images do not support it."""
    about = f'instance_type="{name}"'
    fix = f'`instance_type="{" or ".join(similar_types(name))}"`, or another region'
    if gpu := FACTS["too_old"].get(name.partition(".")[0]):
        message = f"its GPU, {gpu}, is older than Turing, the oldest that PyTorch's CUDA 13 builds support"
        raise BadInput(message, about=about, fix=fix)
    request = {"InstanceTypes": [name]}
    answer = session.find("ec2", "describe_instance_types", ignore=("InvalidInstanceType",), **request)
    if not answer or not answer["InstanceTypes"]:
        raise BadInput(f"{session.region} has no such instance type", about=about, fix=fix)
    description = answer["InstanceTypes"][0]
    if "x86_64" not in description["ProcessorInfo"]["SupportedArchitectures"]:
        raise BadInput("its CPUs are ARM; the trainer image is built for amd64", about=about, fix=fix)
    gpus = description.get("GpuInfo", {}).get("Gpus", [])
    nvidia = sum(gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA")
    network = description.get("NetworkInfo", {})
    adapters = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1) if network.get("EfaSupported") else 0
    first = int(network.get("MaximumNetworkCards", 0) > adapters > 1)  # the first card of p6-b300 has none
    efa = range(first, first + adapters)
    return InstanceType(name, description["VCpuInfo"]["DefaultVCpus"], nvidia, efa)


@dataclass(frozen=True)
class CapacityBlock:
    """A purchased Capacity Block: its id, machine type, zone, end, and number of free machines."""

    id: str
    type: str
    zone: str
    end: datetime
    free: int


def capacity_block(session: AwsSession, options: Mapping[str, Any], nodes: int) -> CapacityBlock | None:
    """Look up the requested Capacity Block, if any; raise BadInput if it cannot provide the nodes now."""
    name = options.get("capacity_block")
    if name is None:
        return None
    about = f'capacity_block="{name}"'
    page = f"https://{session.region}.console.aws.amazon.com/ec2/home#CapacityReservations:"
    if conflicting := sorted({"instance_type", "instance_types", "spot", "zone"} & set(options)):
        message = f"the block determines type and zone; {', '.join(conflicting)} cannot be chosen"
        raise BadInput(message, about=about, fix=f"leave out {', '.join(conflicting)}")
    ignore = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
    reservation_ids = {"CapacityReservationIds": [name]}
    answer = session.find("ec2", "describe_capacity_reservations", ignore=ignore, **reservation_ids)
    reservation = next(iter(answer["CapacityReservations"] if answer else ()), None)
    if reservation is None:
        raise BadInput(f"{session.region} has no such reservation", about=about, fix=f"see {page}")
    if reservation.get("ReservationType") != "capacity-block":
        kind, zone = reservation["InstanceType"], reservation["AvailabilityZone"]
        fix = f'`instance_type="{kind}"`, `zone="{zone}"`, without it'
        message = "it is not a Capacity Block, but a reservation that matching instances use automatically"
        raise BadInput(message, about=about, fix=fix)
    if reservation["State"] != "active":
        message = f"it is {reservation['State'].replace('-', ' ')}"
        if reservation["State"] == "scheduled":
            message = f"it begins at {reservation['StartDate']:%Y-%m-%d %H:%M} UTC"
        raise BadInput(message, about=about, fix=f"the same call when it is active, or another one: {page}")
    if nodes > (most := reservation["TotalInstanceCount"]):
        raise BadInput(f"it has {most} machines", about=f"{about}, nodes={nodes}", fix=f"`nodes={most}`")
    kind, zone, end = reservation["InstanceType"], reservation["AvailabilityZone"], reservation["EndDate"]
    return CapacityBlock(str(name), kind, zone, end, reservation["AvailableInstanceCount"])


def zones(session: AwsSession, types: list[str], first: str = "") -> tuple[str, str]:
    """Choose two zones; the first, which can be given, offers one of the types, the second if possible."""
    state = [
        {"Name": "zone-type", "Values": ["availability-zone"]},
        {"Name": "state", "Values": ["available"]},
    ]
    available = session.call("ec2", "describe_availability_zones", Filters=state)["AvailabilityZones"]
    usable = {zone["ZoneName"] for zone in available if zone.get("ZoneId") not in ZONES_WITHOUT_EKS}
    offering = zones_with(session, types) & usable
    if not offering or len(usable) < 2 or first not in {"", *offering}:
        where = f"zone {first}" if first else f"no zone of {session.region}"
        fixes = [f'`zone="{zone}"`' for zone in sorted(offering)] if first else []
        fixes += [f'`instance_type="{type_}"`' for type_ in similar_types(types[0])]
        about = f'instance_type="{", ".join(types)}"'
        message = f"{where} has {'no ' if first else ''}machines of this type"
        raise BadInput(message, about=about, fix=" or ".join(fixes))
    chosen = sorted(usable, key=lambda zone: (zone != first, zone not in offering, zone))
    return chosen[0], chosen[1]


def zones_with(session: AwsSession, types: Iterable[str]) -> set[str]:
    """Find the zones that offer one of the types; AWS does not report free capacity."""
    filters = [{"Name": "instance-type", "Values": list(types)}]
    request = {"LocationType": "availability-zone", "Filters": filters}
    offerings = session.paginate(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", **request
    )
    return {offering["Location"] for offering in offerings}


def similar_types(name: str) -> list[str]:
    """List up to three alternatives to a type: with a GPU if it has one."""
    alternatives = FACTS["with_a_gpu" if re.match(r"(g|gr|p|vt)\d", name) else "without"]
    return [type_ for type_ in alternatives if type_ != name][:3]


def quota_family(kind: str, *, spot: bool = False) -> tuple[str, str]:
    """Return the name and code of the vCPU quota that a type counts against.

    Example:
        >>> quota_family("g4dn.xlarge")
        ('G and VT', 'L-DB2E81BA')
    """
    if spot and kind.startswith("p5"):
        return "P5", "L-C4BD4855"
    letters = re.match(r"[a-z]+?(?=\d|-)", kind)
    name, on_demand, as_spot = FACTS["quotas"].get(letters[0] if letters else "", FACTS["quotas"]["standard"])
    return name, as_spot if spot else on_demand


def vcpu_requests(train: Machines, nodes: int, system: str) -> list[tuple[str, int, bool]]:
    """List a cluster's (type, count, spot) that count against vCPU quotas; a Capacity Block does not."""
    return [(system, 1, False), *([] if train.block else [(train.type, nodes, train.spot)])]


def check_vcpus(
    session: AwsSession, cluster: str, requests: Iterable[tuple[str, int, bool]]
) -> Iterable[Check]:
    """Check each vCPU quota that is needed; machines of the cluster itself do not count as in use."""
    needed, in_use = _vcpus(session, requests), _vcpus(session, _running(session, cluster))
    for (name, code, spot), vcpus in needed.items():
        about = f"vCPU quota of {name} instances, {'spot' if spot else 'on demand'}"
        other = '\nor `instance_type="m5.xlarge"`, which has no GPU' if name in ("G and VT", "P") else ""
        used = in_use.get((name, code, spot), 0)
        yield check_quota(session, about, "ec2", code, vcpus, used, other)


def check_quota(
    session: AwsSession, about: str, service: str, code: str, needed: int, used: int, alternative: str
) -> Check:
    """Check a quota of the account, or AWS's default; one that Service Quotas does not have is a warning."""
    codes = {"ServiceCode": service, "QuotaCode": code}
    answer = session.find("service-quotas", "get_service_quota", **codes)
    answer = answer or session.find("service-quotas", "get_aws_default_service_quota", **codes)
    limit = answer["Quota"]["Value"] if answer else None
    shown, verb = "an unknown limit" if limit is None else f"{limit:g}", "is" if needed == 1 else "are"
    message = f"{needed} {verb} needed; {used} of {shown} in use"
    if limit is not None and needed + used <= limit:
        return ok(about, message)
    fix = quota_increase_hint(session, code, needed + used, service) + alternative
    return warn(about, message, fix) if limit is None else failed(about, message, fix)


def _vcpus(
    session: AwsSession, machines: Iterable[tuple[str, int, bool]]
) -> dict[tuple[str, str, bool], int]:
    sums: dict[tuple[str, str, bool], int] = {}
    counts: dict[tuple[str, bool], int] = {}
    for kind, nodes, spot in machines:
        counts[kind, spot] = counts.get((kind, spot), 0) + nodes
    for (kind, spot), nodes in counts.items():
        description = session.call("ec2", "describe_instance_types", InstanceTypes=[kind])["InstanceTypes"][0]
        key = (*quota_family(kind, spot=spot), spot)
        sums[key] = sums.get(key, 0) + description["VCpuInfo"]["DefaultVCpus"] * nodes
    return sums


def _running(session: AwsSession, cluster: str) -> Iterable[tuple[str, int, bool]]:
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for reservation in session.paginate("ec2", "describe_instances", "Reservations", Filters=states):
        for instance in reservation["Instances"]:
            instance_tags = as_dict(instance.get("Tags"))
            owner_tags = tags.read(instance_tags)
            if instance_tags.get("eks:cluster-name") != cluster and not (
                owner_tags and owner_tags.cluster == cluster
            ):
                yield instance["InstanceType"], 1, instance.get("InstanceLifecycle") == "spot"


def quota_increase_hint(session: AwsSession, code: str, value: int, service: str = "ec2") -> str:
    """Describe how to request a larger quota."""
    page = f"{session.region}.console.aws.amazon.com/servicequotas/home/services/{service}/quotas/{code}"
    return f"request {value} at https://{page}, which takes minutes to days"


def launch_failures(session: AwsSession, cluster: str, pool: str) -> dict[str, str]:
    """List failed scaling activities of a pool since its last success, newest first: messages by id."""
    failed: dict[str, str] = {}
    with contextlib.suppress(AwsError):  # diagnostic only
        found = session.find("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=pool) or {}
        group = found.get("nodegroup", {})
        for issue in (group.get("health") or {}).get("issues") or ():
            failed[issue["code"]] = f"Code={issue['code']}: {issue['message']}"
        resources = group.get("resources") or {}
        for group in resources.get("autoScalingGroups") or []:
            request = {"AutoScalingGroupName": group["name"], "MaxRecords": 20}
            answer = session.call("autoscaling", "describe_scaling_activities", **request)
            for activity in answer["Activities"]:
                if activity["StatusCode"] == "Successful":
                    break
                if activity["StatusCode"] in ("Failed", "Cancelled"):
                    message = activity.get("StatusMessage") or activity.get("Cause", "")
                    failed[activity["ActivityId"]] = message
    return failed


def is_permanent(message: str) -> bool:
    """Whether waiting does not help: the account, its quota or its setup forbids the machines."""
    return classify("amazon", message).reason in PERMANENT


def launch_failure_fix(
    session: AwsSession, kind: str, message: str, *, spot: bool, alternative: str
) -> str | None:
    """Return the fix for nodes that AWS did not start; None if the reason is unknown."""
    rows = [classify("amazon", line) for line in message.splitlines()]
    row = next((row for row in rows if row.reason in (*PERMANENT, ErrorReason.STOCKOUT)), None)
    row = row or next((row for row in rows if row.reason not in (ErrorReason.OTHER, ErrorReason.FAULT)), None)
    if row is None:
        return None
    if row.reason is ErrorReason.QUOTA and VCPU_QUOTA.search(message):
        name, code = quota_family(kind, spot=spot)
        return f"the vCPU quota of {name} instances is exhausted: {quota_increase_hint(session, code, 64)}"
    if row.reason is not ErrorReason.STOCKOUT:
        return row.fix
    on_demand = ["`spot=False`, which costs more and is more available"] if spot else []
    types = [f'`instance_type="{type_}"`' for type_ in similar_types(kind)]
    return "create it again with " + ", or ".join([f'`zone="{alternative}"`', *on_demand, *types])
