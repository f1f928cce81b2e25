"""Validate the options of a cluster, and build the parameters of its templates."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from typing import Any

from kitlib.clusters.shape import MAX_NODES, Shape
from kitlib.errors import BadInput
from kitlib.k8s.quantities import check_count
from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.machines import CapacityBlock
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import END, SYSTEM, TRAIN
from trainyard_kit.clouds.eks.templates import policies, template
from trainyard_kit.clouds.spec import (
    COMMON_OPTIONS,
    DISK_GB,
    CloudPlan,
    Machines,
    cidrs_of,
    reject_type_fields,
    strings_of,
)
from trainyard_kit.clouds.tags import Tags, write_time

MACHINE, SYSTEM_MACHINE, SYSTEM_DISK_GB = "m5.xlarge", "t3.large", 50
VERSION = "1.35"
CLUSTER_DELAY = timedelta(minutes=15)  # between the deletions of the nodes and of the cluster
ZONES = ("one", "two")
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(user|role)/[\w+=,.@/-]+")
_SESSION = re.compile(r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/.+")
OPTIONS = {
    "region": "of AWS; by default AWS_REGION, or the profile's",
    "profile": "of your AWS configuration; by default what boto3 finds",
    "instance_type": f"of the training nodes; by default {MACHINE}",
    "instance_types": "several with the same number of GPUs, of which AWS chooses for spot nodes",
    "min_nodes": "the autoscaler's minimum of training nodes; by default 0",
    "max_nodes": "the autoscaler's maximum; by default nodes",
    "capacity_block": "id of a purchased EC2 Capacity Block, cr-…, which determines type and zone",
    "spot": "True uses spot machines, for about a third of the price",
    "zone": "of the training nodes; by default the first that offers their type",
    "efa": "True attaches all Elastic Fabric Adapters of the type, and uses a placement group",
    "private": "True gives nodes no public address; their NAT gateway is billed by the hour",
    "allowed_cidrs": "addresses that may reach the API server; by default all",
    "patch": "a dict with cluster, nodes or both, merged into the templates cluster.yaml and nodes.yaml",
    "tags": "a dict of your own tags, for all resources",
    "version": "of Kubernetes",
    **COMMON_OPTIONS,
}


@dataclass(frozen=True)
class EksPlan(CloudPlan):
    """A cluster to create.

    Attributes:
        zones: The two zones of its subnets.
        zone: Which of them has the training nodes: ``one`` or ``two``.
        efa: Network cards of each training node that have an Elastic Fabric Adapter.
        most: The autoscaler's maximum of training nodes.
        patch: What is merged into its templates, ``cluster`` and ``nodes``.
        block: The Capacity Block of its training nodes, if any.
    """

    zones: tuple[str, str] = ("", "")
    zone: str = "one"
    version: str = VERSION
    own_tags: Mapping[str, str] = field(default_factory=dict)
    efa: range = range(0)
    most: int = 1
    patch: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    block: CapacityBlock | None = None

    @property
    def stack_tags(self) -> dict[str, str]:
        """Tags of its stacks, which CloudFormation copies to all resources; the expiry is not constant."""
        return {**self.own_tags, **replace(self.tags, expires=None).amazon()}

    def cluster_parameters(self, admin: str) -> dict[str, str]:
        """Write the parameters of ``cluster.yaml``; ``admin`` is the ARN of the caller."""
        return {
            "ClusterName": self.tags.cluster,
            "Version": self.version,
            "AdminArn": admin,
            "PublicAccessCidrs": ",".join(self.cidrs) or "0.0.0.0/0",
            "ZoneOne": self.zones[0],
            "ZoneTwo": self.zones[1],
            "PrivateNodes": str(self.private).lower(),
        }

    def expiry_parameters(self) -> dict[str, object]:
        """Write the parameters of ``end.yaml``: both nodes and cluster are tried for a day."""
        nodes, cluster = self.tags.end.astimezone(UTC), self.tags.end.astimezone(UTC) + CLUSTER_DELAY
        times = {"NodesBegin": nodes, "ClusterBegin": cluster, "Until": cluster + timedelta(days=1)}
        return {
            "ClusterName": self.tags.cluster,
            "Expires": write_time(self.tags.end),
            "PermissionsBoundary": self.patched("PermissionsBoundary"),
            **{name: f"{when:%Y-%m-%dT%H:%M:%SZ}" for name, when in times.items()},
        }

    def patched(self, parameter: str) -> str:
        """The patch's default for a parameter of ``cluster.yaml``; empty if none."""
        return str(self.patch.get("cluster", {}).get("Parameters", {}).get(parameter, {}).get("Default", ""))

    def template(self, pool: str) -> str:
        """Build the template of the cluster, of its expiry, or of a node pool."""
        if pool == END:
            policy = {"PolicyName": "trainyard", "PolicyDocument": policies()["stack"]}
            return template("end", {"Resources": {"StackRole": {"Properties": {"Policies": [policy]}}}})
        name = "nodes" if pool else "cluster"
        return template(name, self.patch.get(name, {}), self.efa if pool == TRAIN else range(0))

    def pool_parameters(self, pool: str) -> dict[str, object]:
        """Build the parameters of ``nodes.yaml``, for the system node or the training nodes."""
        common = {
            "ClusterName": self.tags.cluster,
            "Pool": pool,
            "Owner": self.tags.owner,
            "Workshop": self.tags.workshop,
        }
        if pool == SYSTEM:
            single = {"Nodes": 1, "MinNodes": 1, "MaxNodes": 1}
            return {**common, **single, "InstanceTypes": SYSTEM_MACHINE, "DiskGb": SYSTEM_DISK_GB}
        train = self.machines
        return {
            **common,
            "Nodes": train.count,
            "MinNodes": self.least,
            "MaxNodes": self.most,
            "Zone": self.zone,
            "InstanceTypes": ",".join((train.type, *train.alternative_types)),
            "CapacityType": "CAPACITY_BLOCK" if train.block else "SPOT" if train.spot else "ON_DEMAND",
            "CapacityBlock": train.block,
            "AmiType": "AL2023_x86_64_NVIDIA" if train.gpus else "AL2023_x86_64_STANDARD",
            "DiskGb": train.disk_gb,
            "Efa": str(bool(self.efa)).lower(),
        }


def plan(session: AwsSession, owner_tags: Tags, shape: Shape) -> EksPlan:
    options = shape.options
    fix = '`instance_type="m5.xlarge"`, or "g4dn.xlarge" for a GPU'
    reject_type_fields(shape, ("cpus", "memory", "gpus"), about="eks", cloud="AWS", fix=fix)
    block = machines.capacity_block(session, options, shape.nodes)
    names = list(strings_of(options, "instance_types")) or [str(options.get("instance_type") or MACHINE)]
    names = [block.type] if block else names
    types = [machines.instance_type(session, name) for name in names]
    if len({type_.gpus for type_ in types}) > 1:
        fix = "types with the same number of GPUs"
        raise BadInput("these have different numbers of GPUs", about=", ".join(names), fix=fix)
    zone = block.zone if block else str(options.get("zone") or "")
    disk = check_count(options.get("disk_gb", DISK_GB), what="disk_gb", least=20, most=16384)
    idle = shape.nodes if block else 0  # a block is prepaid
    least = check_count(options.get("min_nodes", idle), what="min_nodes", least=0, most=shape.nodes)
    most = check_count(
        options.get("max_nodes", shape.nodes), what="max_nodes", least=shape.nodes, most=MAX_NODES
    )
    spot, alternatives = bool(options.get("spot")), tuple(names[1:])
    result = EksPlan(
        owner_tags,
        Machines(
            names[0],
            shape.nodes,
            types[0].gpus,
            spot=spot,
            alternative_types=alternatives,
            disk_gb=disk,
            block=block.id if block else "",
        ),
        bool(options.get("private")),
        zones=machines.zones(session, names, zone),
        version=str(options.get("version") or VERSION),
        admins=tuple(map(check_principal, strings_of(options, "admins"))),
        cidrs=cidrs_of(options),
        own_tags=_dict(options, "tags"),
        efa=_adapters(types) if options.get("efa") else range(0),
        least=least,
        most=most,
        patch=_dict(options, "patch"),
        confirm=options.get("confirm") is True,
        block=block,
    )
    own_network = not result.patched("ExistingVpc")
    if result.efa.stop > 1 and own_network and not result.private:
        message = f"AWS gives no public address to a node with {result.efa.stop} network interfaces"
        about = f"efa=True, {', '.join(names)}"
        raise BadInput(message, about=about, fix="`private=True`, which has a NAT gateway")
    return result if own_network else replace(result, private=False)


def _adapters(types: Sequence[machines.InstanceType]) -> range:
    """The network cards with a fabric adapter: those that all types have."""
    adapters = min((type_.efa for type_ in types), key=len)
    if not adapters:
        about, fix = ", ".join(type_.name for type_ in types), '`instance_type="g4dn.8xlarge"`, for example'
        raise BadInput("these have no Elastic Fabric Adapter", about=about, fix=fix)
    return adapters


def _dict(options: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Read an option that is a dict; AWS validates its content."""
    value = options.get(option) or {}
    if not isinstance(value, Mapping):
        raise BadInput("this is a dict", about=f"{option}={value!r}", fix="see docs/eks.md")
    return dict(value)


def check_principal(arn: object) -> str:
    """Validate the ARN of an IAM user or role; for the ARN of a session the error names its role."""
    if isinstance(arn, str) and _PRINCIPAL.fullmatch(arn):
        return arn
    fix = '"arn:aws:iam::123456789012:role/teachers", or …:user/ada: see aws sts get-caller-identity'
    if session_arn := _SESSION.fullmatch(arn) if isinstance(arn, str) else None:
        partition, account, role = session_arn.groups()
        fix = f'the role of the session: "arn:{partition}:iam::{account}:role/{role}", with its path if any'
    raise BadInput("this is not the ARN of an IAM user or role", about=f"admin {arn!r}", fix=fix)


def training(session: AwsSession, parameters: Mapping[str, str]) -> Machines:
    kind, *alternatives = parameters["InstanceTypes"].split(",")
    gpus = machines.instance_type(session, kind).gpus if "NVIDIA" in parameters.get("AmiType", "") else 0
    spot, disk = parameters.get("CapacityType") == "SPOT", int(parameters.get("DiskGb") or DISK_GB)
    block = parameters.get("CapacityBlock", "")
    return Machines(
        kind,
        int(parameters["Nodes"]),
        gpus,
        spot=spot,
        alternative_types=tuple(alternatives),
        disk_gb=disk,
        block=block,
    )
