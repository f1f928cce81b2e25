"""Instance types: what they have, which zones offer them, what would do instead, and quotas."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kitlib.errors import BadInput
from trainyard_kit.clouds import tags
from trainyard_kit.clouds.checks import Check, failed, ok, warn
from trainyard_kit.clouds.cloud_errors import PERMANENT, ErrorReason, classify
from trainyard_kit.clouds.eks.client_errors import AwsError
from trainyard_kit.clouds.eks.session import AwsSession, as_dict
from trainyard_kit.clouds.spec import Machines, read_table

# https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html
ZONES_WITHOUT_EKS = {"use1-az3", "usw1-az2", "cac1-az3"}
OF_MACHINES = re.compile(r"vcpu ?limit|MaxSpotInstanceCount|InstanceLimitExceeded", re.I)
FACTS = read_table("machines")["amazon"]


@dataclass(frozen=True)
class InstanceType:
    """An instance type: its name, vCPUs, GPUs of NVIDIA, and the network cards that have a fabric adapter."""

    name: str
    cpus: int
    gpus: int
    efa: range


def instance_type(session: AwsSession, name: str) -> InstanceType:
    """Look up an instance type that the region has, and that PyTorch's images run on."""
    about = f'instance_type="{name}"'
    fix = f'`instance_type="{" or ".join(instead(name))}"`, or another region'
    if gpu := FACTS["too_old"].get(name.partition(".")[0]):
        message = f"its GPU, {gpu}, is older than Turing: PyTorch's builds for CUDA 13 do not run on it"
        raise BadInput(message, about=about, fix=fix)
    request = {"InstanceTypes": [name]}
    answer = session.find("ec2", "describe_instance_types", fine=("InvalidInstanceType",), **request)
    if not answer or not answer["InstanceTypes"]:
        raise BadInput(f"{session.region} has no such instance type", about=about, fix=fix)
    description = answer["InstanceTypes"][0]
    if "x86_64" not in description["ProcessorInfo"]["SupportedArchitectures"]:
        raise BadInput("its processors are ARM's; the trainer image is built for amd64", about=about, fix=fix)
    gpus = description.get("GpuInfo", {}).get("Gpus", [])
    nvidia = sum(gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA")
    network = description.get("NetworkInfo", {})
    adapters = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1) if network.get("EfaSupported") else 0
    first = int(network.get("MaximumNetworkCards", 0) > adapters > 1)  # that of p6-b300 has none
    efa = range(first, first + adapters)
    return InstanceType(name, description["VCpuInfo"]["DefaultVCpus"], nvidia, efa)


@dataclass(frozen=True)
class CapacityBlock:
    """A Capacity Block that has been bought: its id, its end, and its machines with how many are free."""

    id: str
    type: str
    zone: str
    end: datetime
    free: int


def capacity_block(session: AwsSession, options: Mapping[str, Any], nodes: int) -> CapacityBlock | None:
    """Look up the Capacity Block that is asked for, if any; refuse one that has not so many nodes now."""
    name = options.get("capacity_block")
    if name is None:
        return None
    about = f'capacity_block="{name}"'
    page = f"https://{session.region}.console.aws.amazon.com/ec2/home#CapacityReservations:"
    if conflicting := sorted({"instance_type", "instance_types", "spot", "zone"} & set(options)):
        words = f"type and zone of its machines are the block's; {', '.join(conflicting)} cannot be chosen"
        raise BadInput(words, about=about, fix=f"leave out {', '.join(conflicting)}")
    fine = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
    reservation_ids = {"CapacityReservationIds": [name]}
    answer = session.find("ec2", "describe_capacity_reservations", fine=fine, **reservation_ids)
    reservation = next(iter(answer["CapacityReservations"] if answer else ()), None)
    if reservation is None:
        raise BadInput(f"{session.region} has no such reservation", about=about, fix=f"see {page}")
    if reservation.get("ReservationType") != "capacity-block":
        kind, zone = reservation["InstanceType"], reservation["AvailabilityZone"]
        fix = f'`instance_type="{kind}"`, `zone="{zone}"`, without it'
        words = (
            "it is not a Capacity Block, but an open reservation that matching instances use automatically"
        )
        raise BadInput(words, about=about, fix=fix)
    if reservation["State"] != "active":
        when = {"scheduled": f"it begins at {reservation['StartDate']:%Y-%m-%d %H:%M} UTC"}
        words = when.get(reservation["State"], f"it is {reservation['State'].replace('-', ' ')}")
        raise BadInput(words, about=about, fix=f"the same call when it is active, or another one: {page}")
    if nodes > (most := reservation["TotalInstanceCount"]):
        raise BadInput(f"it has {most} machines", about=f"{about}, nodes={nodes}", fix=f"`nodes={most}`")
    kind, zone, end = reservation["InstanceType"], reservation["AvailabilityZone"], reservation["EndDate"]
    return CapacityBlock(str(name), kind, zone, end, reservation["AvailableInstanceCount"])


def zones(session: AwsSession, types: list[str], first: str = "") -> tuple[str, str]:
    """Choose two zones: the first, or the wanted one, has machines of a type, the second if possible."""
    state = [
        {"Name": "zone-type", "Values": ["availability-zone"]},
        {"Name": "state", "Values": ["available"]},
    ]
    available = session.call("ec2", "describe_availability_zones", Filters=state)["AvailabilityZones"]
    usable = {
        offering["ZoneName"] for offering in available if offering.get("ZoneId") not in ZONES_WITHOUT_EKS
    }
    having = zones_with(session, types) & usable
    if not having or len(usable) < 2 or first not in {"", *having}:
        where = f"zone {first}" if first else f"no zone of {session.region}"
        alternatives = [f'`zone="{zone}"`' for zone in sorted(having)] if first else []
        fix = " or ".join(
            [*alternatives, *(f'`instance_type="{other_type}"`' for other_type in instead(types[0]))]
        )
        about = f'instance_type="{", ".join(types)}"'
        raise BadInput(f"{where} has {'no ' if first else ''}machines of this type", about=about, fix=fix)
    chosen = sorted(usable, key=lambda zone: (zone != first, zone not in having, zone))
    return chosen[0], chosen[1]


def zones_with(session: AwsSession, types: Iterable[str]) -> set[str]:
    """Find the zones that offer one of the types; AWS does not report free capacity."""
    filters = [{"Name": "instance-type", "Values": list(types)}]
    request = {"LocationType": "availability-zone", "Filters": filters}
    offerings = session.every("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", **request)
    return {offering["Location"] for offering in offerings}


def instead(name: str) -> list[str]:
    """Name types that would do in place of one: with a GPU, or without."""
    alternatives = FACTS["with_a_gpu" if re.match(r"(g|gr|p|vt)\d", name) else "without"]
    return [similar for similar in alternatives if similar != name][:3]


def family(kind: str, *, spot: bool = False) -> tuple[str, str]:
    """Name the quota that a type counts against, and its code.

    Example:
        >>> family("g4dn.xlarge")
        ('G and VT', 'L-DB2E81BA')
    """
    if spot and kind.startswith("p5"):
        return "P5", "L-C4BD4855"
    letters = re.match(r"[a-z]+?(?=\d|-)", kind)
    name, on_demand, as_spot = FACTS["quotas"].get(letters[0] if letters else "", FACTS["quotas"]["standard"])
    return name, as_spot if spot else on_demand


def on_quota(train: Machines, nodes: int, system: str) -> list[tuple[str, int, bool]]:
    """List the machines of a cluster that count against quotas of vCPUs: those of a Capacity Block do not."""
    return [(system, 1, False), *([] if train.block else [(train.type, nodes, train.spot)])]


def check_vcpus(
    session: AwsSession, cluster: str, requests: Iterable[tuple[str, int, bool]]
) -> Iterable[Check]:
    """Check each quota of vCPUs that is needed; what the cluster itself runs already is not counted."""
    needed, in_use = _vcpus(session, requests), _vcpus(session, _running(session, cluster))
    for (name, code, spot), vcpus in needed.items():
        about = f"quota of vCPUs of {name} instances, {'spot' if spot else 'on demand'}"
        used, limit = in_use.get((name, code, spot), 0), quota(session, "ec2", code)
        most = "an unknown limit" if limit is None else f"{limit:g}"
        message = f"{vcpus} are needed; of {most}, {used} are taken"
        fix = more_quota(session, code, vcpus + used)
        if limit is None:
            yield warn(about, message, fix)
        elif vcpus + used > limit:
            if name in ("G and VT", "P"):
                fix += '\nor `instance_type="m5.xlarge"`, which has no GPU'
            yield failed(about, message, fix)
        else:
            yield ok(about, message)


def quota(session: AwsSession, service: str, code: str) -> float | None:
    """Look up a quota of the account, or AWS's default; None where Service Quotas knows neither."""
    codes = {"ServiceCode": service, "QuotaCode": code}
    answer = session.find("service-quotas", "get_service_quota", **codes)
    answer = answer or session.find("service-quotas", "get_aws_default_service_quota", **codes)
    return answer["Quota"]["Value"] if answer else None


def _vcpus(
    session: AwsSession, machines: Iterable[tuple[str, int, bool]]
) -> dict[tuple[str, str, bool], int]:
    sums: dict[tuple[str, str, bool], int] = {}
    counts: dict[tuple[str, bool], int] = {}
    for kind, nodes, spot in machines:
        counts[kind, spot] = counts.get((kind, spot), 0) + nodes
    for (kind, spot), nodes in counts.items():
        description = session.call("ec2", "describe_instance_types", InstanceTypes=[kind])["InstanceTypes"][0]
        key = (*family(kind, spot=spot), spot)
        sums[key] = sums.get(key, 0) + description["VCpuInfo"]["DefaultVCpus"] * nodes
    return sums


def _running(session: AwsSession, cluster: str) -> Iterable[tuple[str, int, bool]]:
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for reservation in session.every("ec2", "describe_instances", "Reservations", Filters=states):
        for instance in reservation["Instances"]:
            instance_tags = as_dict(instance.get("Tags"))
            owner_tags = tags.read(instance_tags)
            if instance_tags.get("eks:cluster-name") != cluster and not (
                owner_tags and owner_tags.cluster == cluster
            ):
                yield instance["InstanceType"], 1, instance.get("InstanceLifecycle") == "spot"


def more_quota(session: AwsSession, code: str, value: int, service: str = "ec2") -> str:
    """Say where a larger quota is asked for."""
    page = f"{session.region}.console.aws.amazon.com/servicequotas/home/services/{service}/quotas/{code}"
    return f"ask for {value} at https://{page}, which takes minutes to days"


def launch_failures(session: AwsSession, cluster: str, pool: str) -> dict[str, str]:
    """Find why a pool's machines do not start: failed scaling activities since a success, newest first."""
    failed: dict[str, str] = {}
    with contextlib.suppress(AwsError):  # it tells more, and nothing depends on it
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
                    failed[activity["ActivityId"]] = activity.get("StatusMessage") or activity.get(
                        "Cause", ""
                    )
    return failed


def is_permanent(message: str) -> bool:
    """Whether waiting does not help: the account or its quota forbids the machines."""
    return classify("amazon", message).why in PERMANENT


def advice(session: AwsSession, kind: str, message: str, *, spot: bool, alternative: str) -> str | None:
    """Say what to do for nodes that AWS did not give; None unless it is known why."""
    rows = [classify("amazon", line) for line in message.splitlines()]
    unspecific = (ErrorReason.OTHER, ErrorReason.FAULT)
    row = next((row for row in rows if row.why in (*PERMANENT, ErrorReason.STOCKOUT)), None)
    row = row or next((row for row in rows if row.why not in unspecific), None)
    if row is None:
        return None
    if row.why is ErrorReason.QUOTA and OF_MACHINES.search(message):
        name, code = family(kind, spot=spot)
        return f"the quota of vCPUs of {name} instances is used up: {more_quota(session, code, 64)}"
    if row.why is not ErrorReason.STOCKOUT:
        return row.fix
    cheaper = ["`spot=False`, which costs more and is seldom refused"] if spot else []
    types = [f'`instance_type="{other_type}"`' for other_type in instead(kind)]
    return "create it again with " + ", or ".join([f'`zone="{alternative}"`', *cheaper, *types])
