"""Automatic deletion of an expired cluster: schedules in the cloud, which need neither laptop nor cluster.

They are created before anything that costs. From the end on, every quarter of an hour for a day, EventBridge
Scheduler asks CloudFormation to delete the stacks of the nodes, and then the cluster's; what is gone already
does no harm. The tag of the schedules' group is the one record of when the end is.
"""

import json
from datetime import UTC, timedelta
from typing import Any

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.cloud_errors import AGAIN, ErrorReason
from trainyard_kit.clouds.eks import roles
from trainyard_kit.clouds.eks.client_errors import AwsError, foreign
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list
from trainyard_kit.clouds.eks.stacks import POOLS, Stack, patiently
from trainyard_kit.clouds.steps import Steps

EVERY, FOR = "rate(15 minutes)", timedelta(days=1)
LATER = timedelta(minutes=15)  # how long after its nodes the cluster is tried for the first time


def group_name(cluster: str) -> str:
    """Name the group of a cluster's schedules."""
    return f"trainyard-{cluster}"


def find(session: AwsSession, cluster: str) -> tags.Tags | None:
    """Read the tags of a cluster's schedule group; None if there is none of the kit's."""
    group = session.find("scheduler", "get_schedule_group", Name=group_name(cluster))
    answer = session.find("scheduler", "list_tags_for_resource", ResourceArn=group["Arn"]) if group else None
    return tags.read(as_dict(answer.get("Tags"))) if answer else None


def groups(session: AwsSession) -> list[str]:
    """List the clusters of the region that have a schedule group."""
    listed = session.every("scheduler", "list_schedule_groups", "ScheduleGroups", NamePrefix="trainyard-")
    names = [rule["Name"].removeprefix("trainyard-") for rule in listed if rule["State"] != "DELETING"]
    return [name for name in names if find(session, name)]


def create(session: AwsSession, owner_tags: tags.Tags, steps: Steps, *, boundary: str = "") -> None:
    """Create the group, the role and the schedules, or move them to the end in the tags."""
    group = group_name(owner_tags.cluster)
    arn = session.arn("scheduler", f"schedule-group/{group}")
    patiently(steps, lambda: _see_free(session, owner_tags.cluster))
    made = session.call(
        "scheduler",
        "create_schedule_group",
        fine=("ConflictException",),
        Name=group,
        Tags=as_list(owner_tags.amazon()),
    )
    before = owner_tags if made else find(session, owner_tags.cluster)
    if before is None:
        raise foreign(f"schedule group {group}")
    later = before.expires is not None and before.expires < owner_tags.end
    if made is None and not later:  # the tag never promises more than the schedules
        session.call("scheduler", "tag_resource", ResourceArn=arn, Tags=as_list(owner_tags.amazon()))
    stacks = [
        session.arn("cloudformation", f"stack/{Stack(session, owner_tags.cluster, pool).name}/*")
        for pool in POOLS
    ]
    role = roles.create_role(
        session,
        owner_tags,
        roles.EXPIRY,
        "scheduler",
        [{"Effect": "Allow", "Action": "cloudformation:DeleteStack", "Resource": stacks}],
        condition={"StringEquals": {"aws:SourceAccount": session.account, "aws:SourceArn": arn}},
        boundary=boundary,
    )
    for pool in POOLS:
        wanted = _schedule(session, owner_tags, pool, role)

        def write(wanted: dict[str, Any] = wanted) -> None:
            if session.call("scheduler", "create_schedule", fine=("ConflictException",), **wanted) is None:
                session.call("scheduler", "update_schedule", **wanted)

        patiently(steps, write)
    if later:
        session.call("scheduler", "tag_resource", ResourceArn=arn, Tags=as_list(owner_tags.amazon()))


def delete(session: AwsSession, cluster: str, steps: Steps) -> None:
    """Delete schedules, group and role, and wait until the group is gone."""
    roles.delete_role(session, roles.role_name(session, cluster, roles.EXPIRY))
    if find(session, cluster):
        session.find("scheduler", "delete_schedule_group", Name=group_name(cluster))
        patiently(steps, lambda: _see_free(session, cluster))


def _see_free(session: AwsSession, cluster: str) -> None:
    """Raise while a group is being deleted: its name cannot be used."""
    group = session.find("scheduler", "get_schedule_group", Name=group_name(cluster))
    if group and group["State"] == "DELETING":
        about = f"schedule group {group_name(cluster)}"
        raise AwsError("it is still being deleted", about=about, fix=AGAIN, why=ErrorReason.BUSY)


def _schedule(session: AwsSession, owner_tags: tags.Tags, pool: str, role: str) -> dict[str, Any]:
    stack = Stack(session, owner_tags.cluster, pool)
    begin = owner_tags.end.astimezone(UTC) + (timedelta() if pool else LATER)
    return {
        "GroupName": group_name(owner_tags.cluster),
        "Name": pool or "cluster",
        "Description": f"the end of {stack.name}",
        "State": "ENABLED",
        "ScheduleExpression": EVERY,
        "StartDate": begin,
        "EndDate": begin + FOR,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": f"arn:{session.partition}:scheduler:::aws-sdk:cloudformation:deleteStack",
            "RoleArn": role,
            "Input": json.dumps({"StackName": stack.name}),
            "RetryPolicy": {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 600},
        },
    }
