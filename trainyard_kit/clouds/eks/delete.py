"""Find and delete a cluster's resources, from any machine and in any state.

Most are in its stacks. Orphans of Kubernetes and others are deleted before the cluster's stack; the expiry's
stack is last, because its schedules could finish the work.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks import ecr, orphans
from trainyard_kit.clouds.eks.create import ensure_expiry
from trainyard_kit.clouds.eks.plan import EksPlan
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.clouds.eks.stacks import (
    END,
    Stack,
    StackState,
    await_stacks,
    read_expiry,
    retry_transient,
    row,
    stacks_of,
)
from trainyard_kit.clouds.price_table import rate
from trainyard_kit.clouds.spec import CloudResource, Machines
from trainyard_kit.clouds.steps import Steps

ATTEMPTS = 3
COSTS = {  # items of the price table
    "AWS::EKS::Cluster": "EKS control plane",
    "AWS::EC2::NatGateway": "NAT gateway",
    "AWS::EC2::EIP": "public IPv4 address",
    "AWS::EFS::FileSystem": "EFS",
    "AWS::S3::Bucket": "S3",
    "AWS::ECR::Repository": "ECR",
}


def find_resources(session: AwsSession, cluster: str | None = None) -> list[CloudResource]:
    """Find the resources of one cluster, or of all in the region for None."""
    stacks = stacks_of(session, cluster)
    names = {cluster} if cluster else {stack.cluster for stack, _ in stacks} | orphans.owners(session)
    resources = []
    for name in sorted(names):
        own = [(stack, state) for stack, state in stacks if stack.cluster == name]
        owner_tags, region = _owner(own, name), session.region
        rows = [resource for stack, _ in own for resource in _resources(stack)]
        kind = "AWS::CloudFormation::Stack"
        rows += [("stack", kind, stack.name, state.status.lower()) for stack, state in own]
        ids = {id_ for _, _, id_, _ in rows}
        outside = [repository for repository in ecr.repositories(session, name) if repository not in ids]
        rows += [("repository", "AWS::ECR::Repository", repository, "exists") for repository in outside]
        for what, kind, id_, status in rows:
            costs = rate("amazon", COSTS[kind]) if kind in COSTS else ""
            costs = "by the hour for each node" if kind == "AWS::EKS::Nodegroup" else costs
            resources.append(CloudResource(name, what, kind, id_, region, status, costs, owner_tags))
        for orphan in orphans.find(session, network(session, name, own)):
            key = (name, orphan.name, orphan.kind, orphan.id, region)
            resources.append(CloudResource(*key, costs=orphan.costs, tags=owner_tags))
    return resources


def delete(session: AwsSession, name: str, steps: Steps) -> None:
    """Delete a cluster's resources; if a stack remains, its expiry does too, and tries again."""
    stacks = stacks_of(session, name)
    owner_tags, roles = (
        _owner(stacks, name),
        {state.service_role for _, state in stacks if state.service_role},
    )
    for role in roles:  # without which the stacks cannot be deleted
        if owner_tags and session.find("iam", "get_role", RoleName=role.rpartition("/")[2]) is None:
            soon = datetime.now(UTC) + timedelta(hours=1)
            _delete([Stack(session, name, END)], stacks, steps)
            plan = EksPlan(replace(owner_tags, expires=soon), Machines("", 0))
            ensure_expiry(session, plan, steps, fix="delete it again")
    _delete([stack for stack, _ in stacks if stack.pool not in ("", END)], stacks, steps)
    _delete([stack for stack, _ in stacks if not stack.pool], stacks, steps)
    with steps.step("repositories and volumes"):
        for repository in list(ecr.repositories(session, name)):
            session.find("ecr", "delete_repository", repositoryName=repository, force=True)
        orphans.clean(session, network(session, name, []), steps)
    _delete([Stack(session, name, END)], stacks, steps)


def _owner(stacks: list[tuple[Stack, StackState]], cluster: str) -> tags.Tags | None:
    owner_tags = next((tags.read(state.tags) for _, state in stacks), None)
    return owner_tags and replace(owner_tags, cluster=cluster, expires=read_expiry(stacks, cluster))


def _delete(stacks: list[Stack], states: Iterable[tuple[Stack, StackState]], steps: Steps) -> None:
    """Delete stacks, again after what blocks them is deleted."""
    fix = "delete it again"
    updating = [
        stack
        for stack in stacks
        if (state := stack.describe()) and state.busy and state.status.startswith("UPDATE")
    ]
    await_stacks(updating, steps, fix=fix)  # CloudFormation does not interrupt an update
    for _ in range(ATTEMPTS):
        stacks = [stack for stack in stacks if stack.describe() is not None]
        for stack in stacks:
            if not stack.pool:
                _clear(stack, states, steps)
            if (state := stack.describe()) and not state.status.startswith("DELETE_IN"):
                retry_transient(steps, stack.delete)  # a recreated role is not known everywhere yet
        await_stacks(stacks, steps, fix=fix)
    for stack in stacks:
        if stack.describe() is not None:
            raise stack.error("delete what it names first, then the cluster again")


def _clear(stack: Stack, states: Iterable[tuple[Stack, StackState]], steps: Steps) -> None:
    """Delete what blocks the deletion of a cluster's stack."""
    with steps.step("orphans, and the content of the bucket"):
        orphans.clean(stack.session, network(stack.session, stack.cluster, states), steps)
        for what, _, id_, _ in _resources(stack):
            if what == "bucket":
                _empty(stack.session, id_)


def _empty(session: AwsSession, bucket: str) -> None:
    if session.find("s3", "head_bucket", Bucket=bucket) is None:
        return
    for key in ("Versions", "DeleteMarkers"):
        versions = list(session.paginate("s3", "list_object_versions", key, Bucket=bucket))
        for begin in range(0, len(versions), 1000):
            batch = [
                {"Key": version["Key"], "VersionId": version["VersionId"]}
                for version in versions[begin : begin + 1000]
            ]
            session.call("s3", "delete_objects", Bucket=bucket, Delete={"Objects": batch, "Quiet": True})


def network(session: AwsSession, cluster: str, states: Iterable[tuple[Stack, StackState]]) -> orphans.Network:
    """Find the network in which a cluster's orphans can be."""
    state = next((state for stack, state in states if not stack.pool), None)
    if state is None:
        return orphans.Network(cluster, "")
    owned = not state.parameters.get("ExistingVpc")
    ids = {what: id_ for what, _, id_, _ in _resources(Stack(session, cluster))}
    alive = session.find("eks", "describe_cluster", name=cluster) is not None
    vpc = ids.get("vpc", "") if owned else state.parameters["ExistingVpc"]
    return orphans.Network(cluster, vpc, owned, alive)


def _resources(stack: Stack) -> list[tuple[str, str, str, str]]:
    """List the existing resources of a stack: name, type, id and status."""
    resources = []
    for summary in stack.resources():
        id_, state = summary.get("PhysicalResourceId"), summary["ResourceStatus"]
        if id_ and state != "DELETE_COMPLETE":
            resources.append((row(summary["LogicalResourceId"]), summary["ResourceType"], id_, state.lower()))
    return resources
