"""All parts of a cluster at AWS, with what each needs; and all that there may be of one cluster, or of any.

How they are brought up and taken down is in `clouds.reconciler.reconcile`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

from clouds.aws.access import AccessEntry
from clouds.aws.builds import build_parts
from clouds.aws.cluster import Addon, EksControlPlane, LaunchTemplate, NodeGroup
from clouds.aws.expiry import Schedule, ScheduleGroup
from clouds.aws.nat import NatAddress, NatGateway, PrivateRoutes
from clouds.aws.network import EfsSecurityGroup, InternetGateway, Vpc, VpcSubnet
from clouds.aws.orphans import orphans
from clouds.aws.plan import SYSTEM, AwsResource, Ec2Resource, EksPlan, as_dict
from clouds.aws.pod_identity import PodIdentities, PodIdentity
from clouds.aws.registry import LogGroup, Repositories
from clouds.aws.roles import Role, homes, roles
from clouds.aws.session import AwsSession
from clouds.aws.storage import EfsFileSystem, MountTarget, MountTargets, S3Bucket
from clouds.reconciler.resource import ResourceState, ResourceStatus
from clouds.tags import EXPIRES, KIT, Tags, read

WORKERS = 8
SETTINGS = {
    "vpc-cni": {"enableNetworkPolicy": "true"}  # attendees of one cluster do not reach each other's pods
}
EARLY = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")  # nodes are not ready without
LATE = ("coredns", "metrics-server")  # run on nodes


def resources(plan: EksPlan) -> list[AwsResource]:
    """Return all that a cluster is made of."""
    own = roles(plan)
    schedules = ScheduleGroup(plan)
    ends = [Schedule(plan, schedules, own["expiry"], each.name) for each in plan.groups]
    ends.append(Schedule(plan, schedules, own["expiry"]))
    bucket, logs, files = S3Bucket(plan), LogGroup(plan), EfsFileSystem(plan)
    vpc = Vpc(plan, (bucket.name,))
    door = EfsSecurityGroup(plan, vpc)
    ways, subnets = network(plan, vpc)
    targets = [MountTarget(plan, files, each, door) for each in subnets]
    # Nothing that costs by the hour is made before its end is.
    before = (logs.name, *(each.name for each in (*ways, *ends) if each not in subnets))
    control = EksControlPlane(plan, own["cluster"], subnets, before)
    return [
        schedules,
        *own.values(),
        *ends,
        bucket,
        logs,
        vpc,
        *ways,
        files,
        door,
        *targets,
        control,
        *programs(plan, own, subnets),
    ]


def network(plan: EksPlan, vpc: Vpc) -> tuple[list[AwsResource], list[VpcSubnet]]:
    """Return subnets and ways to the internet, and of the subnets those in which the nodes are."""
    public = [VpcSubnet(plan, vpc, number, public=True) for number in range(2)]
    gateway = InternetGateway(plan, vpc)
    if not plan.private:
        return [*public, gateway], public
    private = [VpcSubnet(plan, vpc, number, public=False) for number in range(2)]
    address = NatAddress(plan, vpc)
    nat = NatGateway(plan, public[0], address, (gateway.name,))
    return [*public, gateway, *private, address, nat, PrivateRoutes(plan, vpc, private, nat)], private


def programs(plan: EksPlan, own: dict[str, Role], subnets: list[VpcSubnet]) -> list[AwsResource]:
    """Return the machines, and what runs on them."""
    templates = [LaunchTemplate(plan, each) for each in plan.groups]
    groups = [
        NodeGroup(plan, each, own["nodes"], template, subnets[: each.places])
        for each, template in zip(plan.groups, templates, strict=True)
    ]
    system = (f"node group {SYSTEM}",)
    addons = [
        *(Addon(plan, each, settings=SETTINGS.get(each)) for each in EARLY),
        *(Addon(plan, each, system) for each in LATE),
        Addon(plan, "aws-efs-csi-driver", system, account="efs-csi-controller-sa", role=own["efs"]),
    ]
    admins = [AccessEntry(plan, each) for each in plan.admins]
    return [*templates, *groups, *addons, PodIdentity(plan, own["pods"]), *admins]


def all_resources(plan: EksPlan) -> list[AwsResource]:
    """Return all that there may be of a cluster, with what Kubernetes made, in the order of needs."""
    plan = replace(plan, private=True, strict=False, admins=())  # access entries go with the cluster
    parts = [each for each in resources(plan) if not isinstance(each, MountTarget)]
    by_name = {each.name: each for each in parts}
    holds = tuple(each.name for each in parts if isinstance(each, VpcSubnet | InternetGateway | NatGateway))
    left = orphans(plan, by_name["vpc"], by_name["role cluster"], holds=holds)
    by_name["cluster"].depends_on += tuple(each.name for each in left)  # first it goes, and makes no more
    names = frozenset(by_name)
    for each in parts:
        if isinstance(each, Ec2Resource):
            each.others = names - {each.name}
    rooms = PodIdentities(plan, by_name["role pods"])
    targets = MountTargets(plan, by_name["file system"], (*holds, "security group files"))
    return [*parts, rooms, targets, *left, Repositories(plan), *build_parts(plan)]


def there(plan: EksPlan) -> list[tuple[AwsResource, ResourceStatus]]:
    """Describe the existing resources of a cluster."""
    parts = all_resources(plan)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="describe") as pool:
        seen = list(pool.map(lambda part: part.describe(), parts))
    return [
        (part, how) for part, how in zip(parts, seen, strict=True) if how.state is not ResourceState.ABSENT
    ]


def discover(session: AwsSession, cluster: str | None = None) -> list[AwsResource]:
    """Return all that there may be of a cluster, or of every cluster of the kit in the region.

    A look at each tells whether it is there.

    Example:
        >>> [each.name for each in discover(AwsSession("eu-central-1")) if each.describe().id]
    """
    names = clusters(session) if cluster is None else {cluster}
    return [each for name in sorted(names) for each in all_resources(EksPlan(session, Tags(name, "", "")))]


def clusters(session: AwsSession) -> set[str]:
    """Return the names of the clusters of which there is something, by the kit's tags."""
    kit = [{"Key": KIT, "Values": ["true"]}]
    found = [
        as_dict(each["Tags"])
        for each in session.every(
            "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=kit
        )
    ]
    # The index above is late, and does not know all: what is made first and deleted last is asked for itself.
    groups = session.every("scheduler", "list_schedule_groups", "ScheduleGroups", NamePrefix="trainyard-")
    for each in groups:
        told = session.find("scheduler", "list_tags_for_resource", ResourceArn=each["Arn"]) or {}
        found.append(as_dict(told.get("Tags")))
    known = filter(None, map(read, found))
    named = {each.cluster for each in known if each.cluster}
    return named | {name for name, region in homes(session) if region == session.region}


def extend(plan: EksPlan, until: datetime, *, report: Callable[[str], None]) -> None:
    """Move the end of a cluster: first the schedules, then what the tags say of it.

    Args:
        plan: The cluster, as far as its name tells.
        until: Its new end.
        report: Called with what is at work.
    """
    found = [part for part, _ in there(plan)]
    own = next((part.tags for part in found if isinstance(part, ScheduleGroup) and part.tags), plan.tags)
    later = replace(plan, tags=replace(own, cluster=plan.cluster, expires=until), strict=False)
    for part in resources(later):
        if isinstance(part, Schedule):
            report(part.name)
            part.create()
    for part in found:
        report(part.name)
        part.mark({EXPIRES: later.tags.amazon()[EXPIRES]})


def node_group(plan: EksPlan, name: str) -> NodeGroup:
    """Return one of a cluster's node groups."""
    return next(each for each in resources(plan) if isinstance(each, NodeGroup) and each.group.name == name)


def pods_of(plan: EksPlan, namespace: str) -> PodIdentity:
    """The pod identity with which the pods of a namespace read the cluster's bucket."""
    return PodIdentity(plan, roles(plan)["pods"], namespace=namespace)


def control_plane(plan: EksPlan) -> EksControlPlane:
    """Return a cluster's control plane."""
    return next(each for each in resources(plan) if isinstance(each, EksControlPlane))
