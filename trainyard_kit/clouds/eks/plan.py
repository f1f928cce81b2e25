"""A cluster that is asked for, checked, and written as the parameters of the templates."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kitlib.clusters.shape import MOST_NODES, Shape
from kitlib.errors import BadInput
from kitlib.k8s.quantities import check_count
from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.machines import CapacityBlock
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import SYSTEM
from trainyard_kit.clouds.spec import COMMON_OPTIONS, DISK_GB, CloudSpec, Machines, admins_of, no_words
from trainyard_kit.clouds.tags import PREFIX, Tags

MACHINE, SYSTEM_MACHINE, SYSTEM_DISK_GB = "m5.xlarge", "t3.large", 50
VERSION = "1.35"
ZONES = ("one", "two")
# Those of the templates that a user may set: a network of their own, a permissions boundary, access by ssh.
PARAMETERS = (
    "ExistingVpc", "ExistingSubnets", "ZoneOne", "ZoneTwo", "PermissionsBoundary", "SshKey", "SshCidr"
)  # fmt: skip
NETWORK = PARAMETERS[:4]
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(user|role)/[\w+=,.@/-]+")
_SESSION = re.compile(r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]+)/.+")
OPTIONS = {
    "region": "of AWS; by default AWS_REGION, or the profile's",
    "profile": "of your AWS configuration; by default what boto3 finds",
    "instance_type": f"of the training nodes; by default {MACHINE}",
    "instance_types": "several, with as many GPUs each: spot nodes are of whichever AWS has",
    "min_nodes": "to how many the training nodes shrink while they are idle; by default 0",
    "max_nodes": "to how many they grow for pods that wait; by default nodes",
    "capacity_block": "id of a Capacity Block of EC2 that you have bought, cr-…: its type and its zone",
    "spot": "True takes machines that AWS may take back, for about a third of the price",
    "zone": "of the training nodes; by default the first that offers their type",
    "efa": "True gives them all Elastic Fabric Adapters of their type, and places them close together",
    "private": "True gives nodes no public address; the NAT gateway that they need costs by the hour",
    "allowed_cidrs": "addresses from which the API server is reached; by default all",
    "parameters": f"further parameters of the templates, a dict: {', '.join(PARAMETERS)}",
    "tags": "a dict of your own tags, for all resources",
    "version": "of Kubernetes",
    **COMMON_OPTIONS,
}


@dataclass(frozen=True)
class EksPlan(CloudSpec):
    """A cluster as it shall be.

    Attributes:
        machines: Its training nodes.
        zones: The two zones of its subnets.
        zone: Which of them has the training nodes: ``one`` or ``two``.
        cidrs: From which its API server is reached.
        efa: Network cards of each training node that have an Elastic Fabric Adapter.
        most: To how many nodes the training nodes grow for pods that wait.
        parameters: Further parameters of its templates, by their names there.
        confirm: Whether the user has agreed to costs beforehand.
        block: The Capacity Block of which they are, if any.
    """

    machines: Machines
    zones: tuple[str, str] = ("", "")
    zone: str = "one"
    version: str = VERSION
    admins: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ("0.0.0.0/0",)
    own_tags: Mapping[str, str] = field(default_factory=dict)
    efa: range = range(0)
    most: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    confirm: bool = False
    block: CapacityBlock | None = None

    @property
    def stack_tags(self) -> dict[str, str]:
        """Tags of its stacks, which reach all resources."""
        return {**self.own_tags, **replace(self.tags, expires=None).amazon()}  # the end moves, tags do not

    def cluster_parameters(self, admin: str) -> dict[str, str]:
        """Write the parameters of ``cluster.yaml``; ``admin`` is the ARN of the caller."""
        return {
            "ClusterName": self.tags.cluster,
            "Version": self.version,
            "AdminArn": admin,
            "PublicAccessCidrs": ",".join(self.cidrs),
            "ZoneOne": self.zones[0],
            "ZoneTwo": self.zones[1],
            "PrivateNodes": str(self.private).lower(),
            **{key: value for key, value in self.parameters.items() if not key.startswith("Ssh")},
        }

    def pool_parameters(self, pool: str) -> dict[str, object]:
        """Write the parameters of ``nodes.yaml``, for the system's node or the training nodes."""
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
            **{key: value for key, value in self.parameters.items() if key.startswith("Ssh")},
            "Zone": self.zone,
            "InstanceTypes": ",".join((train.type, *train.others)),
            "CapacityType": "CAPACITY_BLOCK" if train.block else "SPOT" if train.spot else "ON_DEMAND",
            "CapacityBlock": train.block,
            "AmiType": "AL2023_x86_64_NVIDIA" if train.gpus else "AL2023_x86_64_STANDARD",
            "DiskGb": train.disk_gb,
            "Efa": str(bool(self.efa)).lower(),
        }


def plan(session: AwsSession, owner_tags: Tags, shape: Shape) -> EksPlan:
    """Check what is asked for."""
    options = shape.options
    fix = 'instance_type="m5.xlarge", or "g4dn.xlarge" for a GPU'
    no_words(shape, ("cpus", "memory", "gpus"), about="eks", cloud="AWS", fix=fix)
    block = machines.capacity_block(session, options, shape.nodes)
    names = _strings(options, "instance_types") or [str(options.get("instance_type") or MACHINE)]
    names = [block.type] if block else names
    types = [machines.instance_type(session, name) for name in names]
    if len({type_.gpus for type_ in types}) > 1:
        fix = "types with as many GPUs each"
        raise BadInput("these have different numbers of GPUs", about=", ".join(names), fix=fix)
    zone, parameters = block.zone if block else str(options.get("zone") or ""), _parameters(options)
    efa, existing = _adapters(options, types), "ExistingVpc" in parameters
    zones = (parameters["ZoneOne"], parameters["ZoneTwo"]) if existing else ("", "")
    if existing and zone not in {"", *zones}:
        fix = f"zone={' or '.join(map(repr, zones))}"
        raise BadInput("the existing subnets are elsewhere", about=f'zone="{zone}"', fix=fix)
    disk = check_count(options.get("disk_gb", DISK_GB), what="disk_gb", least=20, most=16384)
    idle = shape.nodes if block else 0  # what is paid for stays
    least = check_count(options.get("min_nodes", idle), what="min_nodes", least=0, most=shape.nodes)
    most = check_count(
        options.get("max_nodes", shape.nodes), what="max_nodes", least=shape.nodes, most=MOST_NODES
    )
    spot, alternatives = bool(options.get("spot")), tuple(names[1:])
    return EksPlan(
        owner_tags,
        Machines(
            names[0],
            shape.nodes,
            types[0].gpus,
            spot=spot,
            others=alternatives,
            disk_gb=disk,
            block=block.id if block else "",
        ),
        bool(options.get("private")) and not existing,
        zones=zones if existing else machines.zones(session, names, zone),
        zone=ZONES[existing and zone == zones[1]],
        version=str(options.get("version") or VERSION),
        admins=tuple(map(check_principal, admins_of(options.get("admins")))),
        cidrs=tuple(_strings(options, "allowed_cidrs")) or ("0.0.0.0/0",),
        own_tags=_tags(options.get("tags") or {}),
        efa=efa,
        least=least,
        most=most,
        parameters=parameters,
        confirm=options.get("confirm") is True,
        block=block,
    )


def _adapters(options: Mapping[str, Any], types: Sequence[machines.InstanceType]) -> range:
    """The network cards of each node that get a fabric adapter: as many as all its types have."""
    if not options.get("efa"):
        return range(0)
    adapters = min((type_.efa for type_ in types), key=len)
    about = ", ".join(type_.name for type_ in types)
    if not adapters:
        fix = 'instance_type="g4dn.8xlarge", for one'
        raise BadInput("these have no Elastic Fabric Adapter", about=about, fix=fix)
    if adapters.stop > 1 and not (options.get("private") or "ExistingVpc" in _parameters(options)):
        words = f"AWS gives no public address to a node with {adapters.stop} network interfaces"
        raise BadInput(words, about=f"efa=True, {about}", fix="private=True, which has a NAT gateway")
    return adapters


def _parameters(options: Mapping[str, Any]) -> dict[str, str]:
    """Read further parameters of the templates; CloudFormation checks their values."""
    parameters = options.get("parameters") or {}
    if not isinstance(parameters, Mapping) or (unknown := sorted(set(parameters) - set(PARAMETERS))):
        words = f"the templates let you set {', '.join(PARAMETERS)}"
        wrong = parameters if not isinstance(parameters, Mapping) else ", ".join(unknown)
        raise BadInput(words, about=f"parameters={wrong!r}", fix="see: trainyard cluster template eks")
    lists = {key: value for key, value in parameters.items() if isinstance(value, list | tuple)}
    written = {key: ",".join(map(str, lists.get(key, [value]))) for key, value in parameters.items()}
    if (existing := set(NETWORK) & set(written)) and (missing := sorted(set(NETWORK) - existing)):
        words = "a network of your own needs its VPC, two subnets and their zones"
        raise BadInput(words, about="parameters=", fix=f"add {', '.join(missing)}")
    return written


def _strings(options: Mapping[str, Any], option: str) -> list[str]:
    """Read an option that is a list of strings."""
    value = options.get(option) or []
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise BadInput("this is a list", about=f"{option}={value!r}", fix=f"{option}=[{value!r}]")
    return list(value)


def _tags(raw: object) -> dict[str, str]:
    if (
        not isinstance(raw, Mapping)
        or not all(isinstance(word, str) for pair in raw.items() for word in pair)
        or any(key.startswith((PREFIX, "aws:")) for key in raw)
    ):
        words = f"tags are a dict of strings, and no key begins with {PREFIX} or aws:"
        raise BadInput(words, about=f"tags={raw!r}", fix='tags={"cost-centre": "4711"}')
    return dict(raw)


def check_principal(arn: object) -> str:
    """Validate the ARN of a user or role as an administrator; of a session, the error names the role."""
    if isinstance(arn, str) and _PRINCIPAL.fullmatch(arn):
        return arn
    fix = '"arn:aws:iam::123456789012:role/teachers", or …:user/ada: aws sts get-caller-identity tells'
    if meant := _SESSION.fullmatch(arn) if isinstance(arn, str) else None:
        partition, account, role = meant.groups()
        fix = f'the role of the session: "arn:{partition}:iam::{account}:role/{role}", with its path if any'
    raise BadInput("this is not the ARN of a user or role of IAM", about=f"admin {arn!r}", fix=fix)


def training(session: AwsSession, parameters: Mapping[str, str]) -> Machines:
    """Read the training nodes from the parameters of their stack."""
    kind, *alternatives = parameters["InstanceTypes"].split(",")
    gpus = machines.instance_type(session, kind).gpus if "NVIDIA" in parameters.get("AmiType", "") else 0
    spot, disk = parameters.get("CapacityType") == "SPOT", int(parameters.get("DiskGb") or DISK_GB)
    block = parameters.get("CapacityBlock", "")
    return Machines(
        kind, int(parameters["Nodes"]), gpus, spot=spot, others=tuple(alternatives), disk_gb=disk, block=block
    )
