"""All parts of a cluster at AWS, with what each needs; and what is there of a cluster, or of all.

How they are brought up and taken down is in `kitlib.clouds.steps`.
"""

from concurrent.futures import ThreadPoolExecutor

from kitlib.clouds.aws.cluster import Addon, ControlPlane, NodeGroup, PodIdentity, Template
from kitlib.clouds.aws.expiry import Schedule, ScheduleGroup
from kitlib.clouds.aws.network import FilesGroup, InternetGateway, Subnet, Vpc
from kitlib.clouds.aws.plan import SYSTEM, Part, Plan
from kitlib.clouds.aws.roles import roles
from kitlib.clouds.aws.storage import Bucket, FileSystem, MountTarget
from kitlib.clouds.resource import Seen, State

WORKERS = 8
EARLY = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")  # nodes are not ready without
LATE = ("coredns", "metrics-server")  # run on nodes


def resources(plan: Plan) -> list[Part]:
    """Return all that a cluster is made of."""
    own = roles(plan)
    schedules = ScheduleGroup(plan)
    ends = [Schedule(plan, schedules, own["expiry"], each.name) for each in plan.groups]
    ends.append(Schedule(plan, schedules, own["expiry"]))
    bucket = Bucket(plan)
    vpc = Vpc(plan, (bucket.name,))
    public = [Subnet(plan, vpc, number, public=True) for number in range(2)]
    gateway = InternetGateway(plan, vpc)
    subnets = public
    files, door = FileSystem(plan), FilesGroup(plan, vpc)
    targets = [MountTarget(plan, files, each, door) for each in subnets]
    before = (gateway.name, *(each.name for each in ends))
    control = ControlPlane(plan, own["cluster"], subnets, before)
    templates = [Template(plan, each) for each in plan.groups]
    groups = [
        NodeGroup(plan, each, own["nodes"], template, subnets)
        for each, template in zip(plan.groups, templates, strict=True)
    ]
    system = (f"node group {SYSTEM}",)
    addons = [
        *(Addon(plan, each) for each in EARLY),
        *(Addon(plan, each, system) for each in LATE),
        Addon(plan, "aws-efs-csi-driver", system, account="efs-csi-controller-sa", role=own["efs"]),
    ]
    return [
        schedules,
        *own.values(),
        *ends,
        bucket,
        vpc,
        *public,
        gateway,
        files,
        door,
        *targets,
        control,
        *templates,
        *groups,
        *addons,
        PodIdentity(plan, own["pods"]),
    ]


def node_group(plan: Plan, name: str) -> NodeGroup:
    """Return one of a cluster's node groups."""
    return next(each for each in resources(plan) if isinstance(each, NodeGroup) and each.group.name == name)


def there(plan: Plan) -> list[tuple[Part, Seen]]:
    """Return what there is of a cluster, and how it is."""
    parts = resources(plan)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="look") as pool:
        seen = list(pool.map(lambda part: part.look(), parts))
    return [(part, how) for part, how in zip(parts, seen, strict=True) if how.state is not State.ABSENT]
