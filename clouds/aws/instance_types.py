"""What AWS says of the machines of a type: GPUs, processors, zones that have them, and what else would do."""

import difflib
import re
from dataclasses import dataclass

from clouds.aws.client_errors import AwsError
from clouds.aws.session import AwsSession
from kitlib.errors import BadInput

# Zones in which EKS has no control planes:
# https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html
WITHOUT_EKS = {"use1-az3", "usw1-az2", "cac1-az3"}
# What can stand in for another: with one GPU, the cheapest first; and without.
WITH_A_GPU = ("g4dn.xlarge", "g6.xlarge", "g5.xlarge", "g4dn.2xlarge", "g5.2xlarge", "p3.2xlarge")
WITHOUT = ("m5.xlarge", "m6i.xlarge", "m7i.xlarge", "m5.large", "c5.2xlarge", "t3.xlarge")


@dataclass(frozen=True)
class InstanceType:
    """An instance type.

    Attributes:
        name: ``g4dn.xlarge``.
        cpus: Virtual ones.
        memory_gib: Of main memory.
        gpus: Of NVIDIA.
        arm: Whether its processors are ARM's.
    """

    name: str
    cpus: int
    memory_gib: float
    gpus: int
    arm: bool


def instance_type(session: AwsSession, name: str) -> InstanceType:
    """Look up an instance type.

    Raises:
        BadInput: The region has no such type.
    """
    try:
        answer = session.call("ec2", "describe_instance_types", InstanceTypes=[name])
        found = answer["InstanceTypes"][0]
    except (AwsError, IndexError) as error:
        if isinstance(error, AwsError) and not error.code.startswith("InvalidInstanceType"):
            raise
        raise BadInput(
            f"{session.region} has no such instance type",
            about=f'instance_type="{name}"',
            fix=_meant(session, name),
        ) from error
    gpus = (found.get("GpuInfo") or {}).get("Gpus") or []
    return InstanceType(
        name,
        found["VCpuInfo"]["DefaultVCpus"],
        found["MemoryInfo"]["SizeInMiB"] / 1024,
        sum(each["Count"] for each in gpus if each["Manufacturer"] == "NVIDIA"),
        "arm64" in found["ProcessorInfo"]["SupportedArchitectures"],
    )


def zones(session: AwsSession, instance_type: str) -> tuple[str, str]:
    """Return two zones for a cluster's subnets, both with machines of the type if there are two.

    The first has the type in any case.

    Raises:
        BadInput: No zone has it, or there is only one zone in all.
    """
    here = [
        {"Name": "zone-type", "Values": ["availability-zone"]},
        {"Name": "state", "Values": ["available"]},
    ]
    every = session.call("ec2", "describe_availability_zones", Filters=here)["AvailabilityZones"]
    usable = sorted(each["ZoneName"] for each in every if each.get("ZoneId") not in WITHOUT_EKS)
    having = set(zones_with(session, instance_type))
    chosen = sorted(usable, key=lambda zone: (zone not in having, zone))
    if len(chosen) < 2 or chosen[0] not in having:
        raise BadInput(
            f"no zone of {session.region} has machines of this type",
            about=f'instance_type="{instance_type}"',
            fix=f"{' or '.join(instead(session, instance_type)) or 'another type'}, or another region",
        )
    return chosen[0], chosen[1]


def zones_with(session: AwsSession, instance_type: str) -> list[str]:
    """Return the zones that have machines of a type; whether one is free there, nobody tells."""
    offers = session.every(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [instance_type]}],
    )
    return sorted(each["Location"] for each in offers)


def instead(session: AwsSession, instance_type: str) -> list[str]:
    """Return up to three types of the region that would do in place of one: with a GPU, or without."""
    others = WITH_A_GPU if re.match(r"(g|gr|p|vt)\d", instance_type) else WITHOUT
    offered = _offered(session)
    return [each for each in others if each in offered and each != instance_type][:3]


def _offered(session: AwsSession) -> set[str]:
    """Return all types that a region has."""
    every = session.every(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", LocationType="region"
    )
    return {each["InstanceType"] for each in every}


def _meant(session: AwsSession, name: str) -> str:
    try:
        near = difflib.get_close_matches(name, sorted(_offered(session)), n=3, cutoff=0.6)
    except AwsError:  # who may not list them learns less
        near = []
    if near:
        return f"did you mean {' or '.join(near)}?"
    return 'another type, such as "m5.xlarge" or, with a GPU, "g4dn.xlarge"; or another region'
