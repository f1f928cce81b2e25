"""The end of a cluster that nobody deletes: schedules in the cloud itself, which need neither the laptop nor
the cluster.

They are made before anything that costs by the hour. From its end on, every quarter of an hour for a day,
EventBridge Scheduler asks EKS to delete the node groups, and then the cluster; what is gone already is no
harm. After that the schedules delete themselves.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from clouds.aws.plan import AwsResource, EksPlan, as_dict, as_list
from clouds.aws.roles import Role
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus
from clouds.tags import read

EVERY, FOR = "rate(15 minutes)", timedelta(days=1)
LATER = timedelta(minutes=15)  # how long after its node groups a cluster is tried for the first time


class ScheduleGroup(AwsResource):
    """What the schedules lie in: it has the tags."""

    kind = "AWS::Scheduler::ScheduleGroup"

    def __init__(self, plan: EksPlan) -> None:
        super().__init__(plan, "schedules")
        self.group = f"trainyard-{plan.cluster}"

    @property
    def arn(self) -> str:
        """Its name in all of AWS."""
        return self.plan.arn("scheduler", f"schedule-group/{self.group}")

    def describe(self) -> ResourceStatus:
        found = self.session.find("scheduler", "get_schedule_group", Name=self.group)
        if found is None:
            return ABSENT
        tags = self.written_tags()
        if not self.is_ours(tags):
            return ABSENT
        state = ResourceState.DELETING if found["State"] == "DELETING" else ResourceState.READY
        return self.seen(state, found["Arn"], tags=tags)

    def create(self) -> None:
        self.session.call(
            "scheduler",
            "create_schedule_group",
            fine={"ConflictException"},
            Name=self.group,
            Tags=as_list(self.written()),
        )

    def delete(self) -> None:
        if self.describe().state is ResourceState.READY:
            self.session.find("scheduler", "delete_schedule_group", Name=self.group)

    def mark(self, tags: Mapping[str, str]) -> None:
        self.session.call("scheduler", "tag_resource", ResourceArn=self.arn, Tags=as_list(tags))

    def written_tags(self) -> dict[str, str]:
        """Return its tags, as they are."""
        found = self.session.find("scheduler", "list_tags_for_resource", ResourceArn=self.arn) or {}
        return as_dict(found.get("Tags"))


class Schedule(AwsResource):
    """Asks EKS to delete one thing, at the end."""

    kind = "AWS::Scheduler::Schedule"

    def __init__(self, plan: EksPlan, group: ScheduleGroup, role: Role, node_group: str = "") -> None:
        self.what = f"node group {node_group}" if node_group else "cluster"
        super().__init__(plan, f"end of {self.what}", (group.name, role.name))
        self.group, self.role, self.node_group = group, role, node_group
        self.schedule = node_group or "cluster"

    def wanted(self) -> dict:
        """Return the schedule as EventBridge wants it; parameters of a call have capital letters there."""
        begin = self.plan.tags.expires.astimezone(UTC) + (timedelta() if self.node_group else LATER)
        whose = {"ClusterName": self.plan.cluster, "NodegroupName": self.node_group}
        return {
            "GroupName": self.group.group,
            "Name": self.schedule,
            "Description": f"the end of {self.what} of {self.plan.cluster}",
            "State": "ENABLED",
            "ScheduleExpression": EVERY,
            "StartDate": begin,
            "EndDate": begin + FOR,
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
            "Target": {
                "Arn": f"arn:{self.session.partition}:scheduler:::aws-sdk:eks:"
                + ("deleteNodegroup" if self.node_group else "deleteCluster"),
                "RoleArn": self.role.arn,
                "Input": json.dumps(whose if self.node_group else {"Name": self.plan.cluster}),
                "RetryPolicy": {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 600},
            },
        }

    def describe(self) -> ResourceStatus:
        found = self.session.find("scheduler", "get_schedule", GroupName=self.group.group, Name=self.schedule)
        if found is None:
            return ABSENT
        self.tags = self.plan.tags
        same = self.plan.tags.expires is None or found.get("StartDate") == self.wanted()["StartDate"]
        return self.seen(ResourceState.READY if same else ResourceState.PARTIAL, found["Arn"])

    def create(self) -> None:
        wanted = self.wanted()
        made = self.session.call("scheduler", "create_schedule", fine={"ConflictException"}, **wanted)
        if made is None:
            self.session.call("scheduler", "update_schedule", **wanted)

    def delete(self) -> None:
        self.session.find("scheduler", "delete_schedule", GroupName=self.group.group, Name=self.schedule)

    def mark(self, tags: Mapping[str, str]) -> None:
        """Do nothing: its group has the tags."""


def end(plan: EksPlan, now: datetime | None = None) -> datetime | None:
    """Find the end of a cluster; None if it has none in the future."""
    found = read(ScheduleGroup(plan).written_tags())
    when = found.expires if found else None
    return when if when and when > (now or datetime.now(UTC)) else None
