"""Finding and deleting what exists of a cluster, from any machine, in whatever state it is.

The stacks know most of it. What Kubernetes and others left is deleted before the cluster's stack; that of the
end, whose schedules could finish the work, last.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks import ecr, orphans
from trainyard_kit.clouds.eks.create import ensure_end
from trainyard_kit.clouds.eks.plan import EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import (
    END,
    Stack,
    StackState,
    end_of,
    follow,
    patiently,
    row,
    stacks_of,
)
from trainyard_kit.clouds.price_table import rate
from trainyard_kit.clouds.spec import CloudResource, Machines
from trainyard_kit.clouds.steps import Steps

ATTEMPTS = 3
COSTS = {  # keys of the table of prices
    "AWS::EKS::Cluster": "EKS control plane",
    "AWS::EC2::NatGateway": "NAT gateway",
    "AWS::EC2::EIP": "public IPv4 address",
    "AWS::EFS::FileSystem": "EFS",
    "AWS::S3::Bucket": "S3",
    "AWS::ECR::Repository": "ECR",
}


def find_resources(session: AwsSession, cluster: str | None = None) -> list[CloudResource]:
    """Find what exists of one cluster, or of all in the region for None."""
    stacks = stacks_of(session, cluster)
    names = {cluster} if cluster else {stack.cluster for stack, _ in stacks} | orphans.owners(session)
    resources = []
    for name in sorted(names):
        mine = [(stack, now) for stack, now in stacks if stack.cluster == name]
        owner_tags = _owner(mine, name)
        rows = [resource for stack, _ in mine for resource in _inside(stack)]
        rows += [
            ("stack", "AWS::CloudFormation::Stack", stack.name, now.status.lower()) for stack, now in mine
        ]
        known = {identity for _, _, identity, _ in rows}
        unknown = [repository for repository in ecr.repositories(session, name) if repository not in known]
        rows += [("repository", "AWS::ECR::Repository", repository, "there") for repository in unknown]
        for what, kind, identity, state in rows:
            costs = rate("amazon", COSTS[kind]) if kind in COSTS else ""
            costs = "by the hour for each node" if kind == "AWS::EKS::Nodegroup" else costs
            resources.append(
                CloudResource(name, what, kind, identity, session.region, state, costs, owner_tags)
            )
        for orphan in orphans.find(session, network(session, name, mine)):
            where, costs = session.region, orphan.costs
            resources.append(
                CloudResource(name, orphan.name, orphan.kind, orphan.id, where, costs=costs, tags=owner_tags)
            )
    return resources


def delete(session: AwsSession, cluster: str, steps: Steps) -> None:
    """Delete what exists of a cluster; if a stack stays, its end does as well, and tries again."""
    stacks = stacks_of(session, cluster)
    owner_tags, roles = _owner(stacks, cluster), {now.service_role for _, now in stacks if now.service_role}
    for role in roles:  # without it, the stacks cannot be deleted
        if owner_tags and session.find("iam", "get_role", RoleName=role.rpartition("/")[2]) is None:
            soon = datetime.now(UTC) + timedelta(hours=1)
            _delete([Stack(session, cluster, END)], stacks, steps)
            plan = EksPlan(replace(owner_tags, expires=soon), Machines("", 0))
            ensure_end(session, plan, steps, fix="delete it again")
    _delete([stack for stack, _ in stacks if stack.pool not in ("", END)], stacks, steps)
    _delete([stack for stack, _ in stacks if not stack.pool], stacks, steps)
    with steps.step("repositories and volumes"):
        for repository in list(ecr.repositories(session, cluster)):
            session.find("ecr", "delete_repository", repositoryName=repository, force=True)
        orphans.clean(session, network(session, cluster, []), steps)
    _delete([Stack(session, cluster, END)], stacks, steps)


def _owner(stacks: list[tuple[Stack, StackState]], cluster: str) -> tags.Tags | None:
    owner_tags = next((tags.read(now.tags) for _, now in stacks), None)
    return owner_tags and replace(owner_tags, cluster=cluster, expires=end_of(stacks, cluster))


def _delete(stacks: list[Stack], states: Iterable[tuple[Stack, StackState]], steps: Steps) -> None:
    """Delete stacks, and again after what held them is gone."""
    fix = "delete it again"
    updating = [
        stack
        for stack in stacks
        if (now := stack.describe()) and now.busy and now.status.startswith("UPDATE")
    ]
    follow(updating, steps, fix=fix)  # which CloudFormation does not interrupt
    for _ in range(ATTEMPTS):
        stacks = [stack for stack in stacks if stack.describe() is not None]
        for stack in stacks:
            if not stack.pool:
                _clear(stack, states, steps)
            if (now := stack.describe()) and not now.status.startswith("DELETE_IN"):
                patiently(steps, stack.delete)  # a role that was just created anew is not known yet
        follow(stacks, steps, fix=fix)
    for stack in stacks:
        if stack.describe() is not None:
            raise stack.error("delete what it names first, then the cluster again")


def _clear(stack: Stack, states: Iterable[tuple[Stack, StackState]], steps: Steps) -> None:
    """Delete what keeps a cluster's stack from being deleted."""
    with steps.step("what Kubernetes left, and the content of the bucket"):
        orphans.clean(stack.session, network(stack.session, stack.cluster, states), steps)
        for what, _, id_, _ in _inside(stack):
            if what == "bucket":
                _empty(stack.session, id_)


def _empty(session: AwsSession, bucket: str) -> None:
    if session.find("s3", "head_bucket", Bucket=bucket) is None:
        return
    for key in ("Versions", "DeleteMarkers"):
        versions = list(session.every("s3", "list_object_versions", key, Bucket=bucket))
        for begin in range(0, len(versions), 1000):
            batch = [
                {"Key": version["Key"], "VersionId": version["VersionId"]}
                for version in versions[begin : begin + 1000]
            ]
            session.call("s3", "delete_objects", Bucket=bucket, Delete={"Objects": batch, "Quiet": True})


def network(session: AwsSession, cluster: str, states: Iterable[tuple[Stack, StackState]]) -> orphans.Network:
    """Find the network in which a cluster's orphans can be."""
    now = next((now for stack, now in states if not stack.pool), None)
    if now is None:
        return orphans.Network(cluster, "")
    owned = not now.parameters.get("ExistingVpc")
    inside = {what: id_ for what, _, id_, _ in _inside(Stack(session, cluster))}
    alive = session.find("eks", "describe_cluster", name=cluster) is not None
    vpc = inside.get("vpc", "") if owned else now.parameters["ExistingVpc"]
    return orphans.Network(cluster, vpc, owned, alive)


def _inside(stack: Stack) -> list[tuple[str, str, str, str]]:
    """List the resources of a stack that exist: name, type, id and state of each."""
    if stack.describe() is None:
        return []
    resources = []
    for summary in stack.session.every(
        "cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack.name
    ):
        id_, state = summary.get("PhysicalResourceId"), summary["ResourceStatus"]
        if id_ and state != "DELETE_COMPLETE":
            resources.append((row(summary["LogicalResourceId"]), summary["ResourceType"], id_, state.lower()))
    return resources
