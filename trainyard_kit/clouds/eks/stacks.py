"""One CloudFormation stack: create it, change it, delete it, and follow its resources.

A stack belongs to the kit if it has the kit's tag. What was created stays where something fails: a missing
GPU does not destroy a control plane.
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/stack-failure-options.html
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kitlib.errors import Interrupted, WaitTimeout
from trainyard_kit.clouds import tags
from trainyard_kit.clouds.cloud_errors import ErrorReason, classify
from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.client_errors import AwsError, foreign
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list
from trainyard_kit.clouds.steps import Phase, Steps, duration

SYSTEM, TRAIN, END = "system", "train", "end"
POOLS = ("", SYSTEM, TRAIN, END)
POLL, PATIENCE, LONGEST = 15.0, 180.0, 5400.0  # seconds
# Resources that take noticeable time have a row of their own, with the seconds that they usually take.
USUAL = {
    "AWS::EKS::Cluster": 480.0,
    "AWS::EC2::NatGateway": 120.0,
    "AWS::EFS::MountTarget": 90.0,
    "AWS::EKS::Nodegroup": 180.0,
    "AWS::EKS::Addon": 60.0,
}
_CANCELLED = re.compile(r"cancelled|The following resource\(s\) failed", re.I)


@dataclass(frozen=True)
class StackState:
    """A stack as CloudFormation describes it; its id, an ARN, finds it after its deletion as well."""

    id: str
    status: str
    reason: str
    parameters: Mapping[str, str]
    outputs: Mapping[str, str]
    tags: Mapping[str, str]
    service_role: str = ""

    @property
    def busy(self) -> bool:
        """Whether CloudFormation is at work on it."""
        return self.status.endswith("IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def complete(self) -> bool:
        """Whether all of it exists."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")

    @property
    def resumable(self) -> bool:
        """Whether an update creates what failed."""
        return self.status in ("CREATE_FAILED", "UPDATE_FAILED")

    @property
    def message(self) -> str:
        """Its status for people."""
        return self.status.lower().replace("_", " ")


class StackFailed(AwsError):
    """A stack did not become what was asked; at a stockout, the zone had no machines of this type."""

    stockout = False


class Stack:
    """A stack of a cluster: of its pool ``system`` or ``train``, of its ``end``, or of the cluster itself."""

    def __init__(self, session: AwsSession, cluster: str, pool: str = "") -> None:
        self.session, self.cluster, self.pool = session, cluster, pool
        self.name = f"trainyard-{cluster}-{pool}".rstrip("-")
        self.about = f"stack {self.name} in {session.region}"
        self.known_failures: Mapping[str, str] = {}  # scaling activities from before the operation
        self.failed: list[str] = []  # what failed, the cause first
        self._id, self._shown = self.name, set[str]()

    def describe(self) -> StackState | None:
        """Describe it; None if there is none, or if it is not the kit's."""
        description = self._found()
        return None if description is None or tags.read(description.tags) is None else description

    def _found(self) -> StackState | None:
        fine = ("ValidationError",)  # there is none
        answer = self.session.find("cloudformation", "describe_stacks", fine=fine, StackName=self.name)
        description = answer["Stacks"][0] if answer else {"StackStatus": "DELETE_COMPLETE"}
        return None if description["StackStatus"] == "DELETE_COMPLETE" else state_of(description)

    def create(
        self,
        body: str,
        parameters: Mapping[str, object],
        stack_tags: Mapping[str, str],
        *,
        role: str,
    ) -> None:
        """Begin to create it, unless somebody else has; without a role it is done by the caller's rights."""
        answer = self.session.find(
            "cloudformation",
            "create_stack",
            fine=("AlreadyExistsException",),
            StackName=self.name,
            TemplateBody=body,
            Parameters=_written(parameters),
            Tags=as_list(stack_tags),
            Capabilities=["CAPABILITY_NAMED_IAM"],
            DisableRollback=True,
            **({"RoleARN": role} if role else {}),
        )
        self.failed = []
        if answer is None and self.describe() is None:
            raise foreign(self.about)

    def update(self, parameters: Mapping[str, object]) -> bool:
        """Begin to change parameters, or continue a failed stack; return whether there is anything to change.

        Tags stay as they are: some resources, such as placement groups, would be replaced for them.
        """
        now = self.describe()
        if now is None:
            raise self.error("call it again")
        unchanged = {key: None for key in now.parameters if key not in parameters}
        # Resources that were created stay where one fails: else a failed creation would be rolled back.
        more: dict[str, Any] = {"DisableRollback": True} if now.resumable or self.pool == END else {}
        more |= {"RoleARN": now.service_role} if now.service_role else {}
        try:
            self.session.call(
                "cloudformation",
                "update_stack",
                StackName=self.name,
                UsePreviousTemplate=True,
                Parameters=_written({**unchanged, **parameters}),
                Tags=as_list(now.tags),
                Capabilities=["CAPABILITY_NAMED_IAM"],
                **more,
            )
        except AwsError as error:
            if "No updates are to be performed" in error.what:
                return False
            raise
        self.failed = []
        return True

    def delete(self) -> None:
        """Begin to delete it."""
        if (now := self._found()) is not None:
            self.session.call("cloudformation", "delete_stack", StackName=now.id)
            self.failed = []

    def resources(self) -> list[dict[str, Any]]:
        """List its resources, also those that are deleted or failed, the last to change last."""
        try:
            listed = self.session.every(
                "cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=self._id
            )
            return sorted(listed, key=lambda resource: resource["LastUpdatedTimestamp"])
        except AwsError as error:
            if error.code != "ValidationError":  # there is none
                raise
            return []

    # Following

    def settled(self, steps: Steps) -> bool:
        """Show the state of its resources; return whether CloudFormation is done with it."""
        title, now = f"stack {self.name}", self._found()
        self._id = now.id if now else self._id  # by which it is found after its deletion as well
        resources = self.resources()
        self.failed = [] if now is None else [words for words in map(_failure, resources) if words]
        for resource in resources:
            self._show(resource, steps)
        if now is None:
            steps.update(title, Phase.DONE, "deleted")
            return True
        if now.busy:
            done = sum(resource["ResourceStatus"].endswith("COMPLETE") for resource in resources)
            steps.update(title, Phase.RUNS, f"{now.message}; {done} of {len(resources)} resources done")
            if self.pool in (SYSTEM, TRAIN) and not now.status.startswith("DELETE"):
                self._watch_launches(now, steps)
            return False
        steps.update(title, Phase.DONE if now.complete else Phase.FAILED, now.message)
        return True

    def _watch_launches(self, now: StackState, steps: Steps) -> None:
        """Show why machines do not start; where no waiting helps, stop long before EKS gives up on them."""
        failed = machines.launch_failures(self.session, self.cluster, self.pool)
        if words := next((words for key, words in failed.items() if key not in self.known_failures), ""):
            steps.update(f"{self.pool}: machines", Phase.RUNS, words)
            if machines.is_permanent(words):
                steps.update(f"{self.pool}: machines", Phase.FAILED, words)
                if now.status == "CREATE_IN_PROGRESS":
                    self.delete()
                self.failed = [f"machines of {self.pool}: {words}"]
                raise self.error("call it again")

    def _show(self, resource: Mapping[str, Any], steps: Steps) -> None:
        """Show a resource that takes its time, or failed; one that was there before has no row."""
        status, kind, name = (
            resource["ResourceStatus"],
            resource["ResourceType"],
            resource["LogicalResourceId"],
        )
        ended = {"COMPLETE": Phase.DONE, "FAILED": Phase.FAILED}.get(status.rpartition("_")[2])
        if (kind in USUAL and not ended) or ended is Phase.FAILED or name in self._shown:
            self._shown.add(name)
            usual = 0.0 if "DELETE" in status else USUAL.get(kind, 0.0)
            reason, where = resource.get("ResourceStatusReason") or "", self.pool or "cluster"
            steps.update(f"{where}: {row(name)}", ended or Phase.RUNS, reason, usual=usual)

    def error(self, fix: str) -> "StackFailed":
        """Build the error for a stack that failed, from its events."""
        now = self._found()
        what = self.failed[0] if self.failed else f"{now.status}: {now.reason}" if now else "it is gone"
        failure = StackFailed(what, about=self.about, fix=fix, detail="\n".join(self.failed[1:]))
        failure.stockout = ErrorReason.STOCKOUT in {classify("amazon", words).why for words in self.failed}
        return failure


def follow(stacks: Iterable[Stack], steps: Steps, *, fix: str) -> None:
    """Wait until CloudFormation is done with all of these stacks, however that ends."""
    waiting, end = list(stacks), steps.clock.now() + LONGEST
    names = ", ".join(stack.name for stack in waiting)
    try:
        while waiting := [stack for stack in waiting if not stack.settled(steps)]:
            if steps.clock.now() > end:
                states = "; ".join(f"{stack.name} is {stack.describe()}" for stack in waiting)
                raise WaitTimeout(f"not done after {duration(LONGEST)}: {states}", about=names, fix=fix)
            steps.sleep(POLL)
    except KeyboardInterrupt as error:
        message = "stopped waiting; CloudFormation continues in the background, and charges may apply"
        raise Interrupted(message, about=names, fix=fix) from error


def patiently(steps: Steps, ask: Callable[[], object]) -> object:
    """Ask again for three minutes while the refusal passes: a new role is not known everywhere."""
    end = steps.clock.now() + PATIENCE
    while True:
        try:
            return ask()
        except AwsError as error:
            if not error.passing or steps.clock.now() > end:
                raise
        steps.sleep(5.0)


def stacks_of(session: AwsSession, cluster: str | None = None) -> list[tuple[Stack, StackState]]:
    """Find the stacks of one cluster, or of all of the kit's clusters in the region."""
    if cluster is not None:
        described = [(stack, stack.describe()) for stack in (Stack(session, cluster, pool) for pool in POOLS)]
        return [(stack, now) for stack, now in described if now is not None]
    stacks = []
    for stack in session.every("cloudformation", "describe_stacks", "Stacks"):
        now = state_of(stack)
        name, owner_tags = now.parameters.get("ClusterName", ""), tags.read(now.tags)
        pool = stack["StackName"].removeprefix(f"trainyard-{name}").lstrip("-")
        if owner_tags and name and pool in POOLS:
            stacks.append((Stack(session, name, pool), now))
    return stacks


def end_of(stacks: Iterable[tuple[Stack, StackState]], cluster: str) -> datetime | None:
    """Read a cluster's end: what its schedules have reached, or less where they are being moved."""
    for stack, now in stacks:
        if (stack.cluster, stack.pool) == (cluster, END):
            times = (tags.read_time(values.get("Expires", "")) for values in (now.outputs, now.parameters))
            return min(filter(None, times), default=None)
    return None


def row(name: str) -> str:
    """Name a resource for people: ``NatGateway`` is a nat gateway."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def state_of(description: Mapping[str, Any]) -> StackState:
    """Read a stack as CloudFormation describes it."""
    return StackState(
        description["StackId"],
        description["StackStatus"],
        description.get("StackStatusReason", ""),
        {
            parameter["ParameterKey"]: parameter.get("ParameterValue", "")
            for parameter in description.get("Parameters", [])
        },
        {output["OutputKey"]: output["OutputValue"] for output in description.get("Outputs", [])},
        as_dict(description.get("Tags")),
        description.get("RoleARN", ""),
    )


def _failure(resource: Mapping[str, Any]) -> str:
    """Say why a resource failed; empty if it did not, or only because another one did."""
    reason = resource.get("ResourceStatusReason") or ""
    if not resource["ResourceStatus"].endswith("FAILED") or _CANCELLED.search(reason):
        return ""
    return f"{resource['LogicalResourceId']} ({resource['ResourceType']}): {reason}"


def _written(parameters: Mapping[str, object]) -> list[dict[str, Any]]:
    """Write parameters; None keeps the value that there is."""
    return [
        {
            "ParameterKey": key,
            **({"UsePreviousValue": True} if value is None else {"ParameterValue": str(value)}),
        }
        for key, value in parameters.items()
    ]
