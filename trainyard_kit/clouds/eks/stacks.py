"""One CloudFormation stack: create, update and delete it, and report its progress.

A stack belongs to the kit if it has the kit's tag. Created resources are kept when another one fails: a
missing GPU does not delete a control plane.
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
from trainyard_kit.clouds.eks.client_errors import AwsError, name_taken
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list
from trainyard_kit.clouds.steps import Phase, Steps, duration

SYSTEM, TRAIN, END = "system", "train", "end"
POOLS = ("", SYSTEM, TRAIN, END)
POLL_SECONDS, RETRY_SECONDS, TIMEOUT_SECONDS = 15.0, 180.0, 5400.0
# Slow resources, which have their own rows, with their usual seconds.
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
    """A stack as CloudFormation describes it; its id, an ARN, stays valid after its deletion."""

    id: str
    status: str
    reason: str
    parameters: Mapping[str, str]
    outputs: Mapping[str, str]
    tags: Mapping[str, str]
    service_role: str = ""

    @property
    def busy(self) -> bool:
        """Whether an operation is in progress."""
        return self.status.endswith("IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def complete(self) -> bool:
        """Whether all its resources exist."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")

    @property
    def resumable(self) -> bool:
        """Whether an update retries the failed resources."""
        return self.status in ("CREATE_FAILED", "UPDATE_FAILED")

    @property
    def message(self) -> str:
        """Its status in words."""
        return self.status.lower().replace("_", " ")


class StackFailed(AwsError):
    """An operation on a stack failed; at a stockout, the zone had no machines of the type."""

    stockout = False


class Stack:
    """A stack of a cluster: a node pool, ``system`` or ``train``, the expiry, ``end``, or the main stack."""

    def __init__(self, session: AwsSession, cluster: str, pool: str = "") -> None:
        self.session, self.cluster, self.pool = session, cluster, pool
        self.name = f"trainyard-{cluster}-{pool}".rstrip("-")
        self.about = f"stack {self.name} in {session.region}"
        self.known_failures: Mapping[str, str] = {}  # scaling activities before the operation
        self.failed: list[str] = []  # failed resources, the cause first
        self._id, self._shown = self.name, set[str]()

    def describe(self) -> StackState | None:
        """Describe the stack; None if it does not exist, or is not the kit's."""
        description = self._describe_any()
        return None if description is None or tags.read(description.tags) is None else description

    def _describe_any(self) -> StackState | None:
        ignore = ("ValidationError",)  # it does not exist
        answer = self.session.find("cloudformation", "describe_stacks", ignore=ignore, StackName=self.name)
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
        """Start creating the stack, unless it exists; without a role with the caller's permissions."""
        answer = self.session.find(
            "cloudformation",
            "create_stack",
            ignore=("AlreadyExistsException",),
            StackName=self.name,
            TemplateBody=body,
            Parameters=_parameter_list(parameters),
            Tags=as_list(stack_tags),
            Capabilities=["CAPABILITY_NAMED_IAM"],
            DisableRollback=True,
            **({"RoleARN": role} if role else {}),
        )
        self.failed = []
        if answer is None and self.describe() is None:
            raise name_taken(self.about)

    def update(self, parameters: Mapping[str, object]) -> bool:
        """Start updating parameters, or resuming a failed stack; return whether there is anything to update.

        Tags are not updated, because that would replace some resources, such as placement groups.
        """
        state = self.describe()
        if state is None:
            raise self.error("call it again")
        unchanged = {key: None for key in state.parameters if key not in parameters}
        # Without DisableRollback a failed update would delete what was created.
        options: dict[str, Any] = {"DisableRollback": True} if state.resumable or self.pool == END else {}
        options |= {"RoleARN": state.service_role} if state.service_role else {}
        try:
            self.session.call(
                "cloudformation",
                "update_stack",
                StackName=self.name,
                UsePreviousTemplate=True,
                Parameters=_parameter_list({**unchanged, **parameters}),
                Tags=as_list(state.tags),
                Capabilities=["CAPABILITY_NAMED_IAM"],
                **options,
            )
        except AwsError as error:
            if "No updates are to be performed" in error.what:
                return False
            raise
        self.failed = []
        return True

    def delete(self) -> None:
        """Start deleting the stack."""
        if (state := self._describe_any()) is not None:
            self.session.call("cloudformation", "delete_stack", StackName=state.id)
            self.failed = []

    def resources(self) -> list[dict[str, Any]]:
        """List its resources, including failed and deleted ones, by the time of their last change."""
        try:
            listed = self.session.paginate(
                "cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=self._id
            )
            return sorted(listed, key=lambda resource: resource["LastUpdatedTimestamp"])
        except AwsError as error:
            if error.code != "ValidationError":  # it does not exist
                raise
            return []

    # Progress

    def report(self, steps: Steps) -> bool:
        """Show the state of its resources; return whether the operation has ended."""
        title, state = f"stack {self.name}", self._describe_any()
        self._id = state.id if state else self._id  # valid after its deletion
        resources = self.resources()
        self.failed = [] if state is None else [failure for failure in map(_failure, resources) if failure]
        for resource in resources:
            self._show(resource, steps)
        if state is None:
            steps.update(title, Phase.DONE, "deleted")
            return True
        if state.busy:
            done = sum(resource["ResourceStatus"].endswith("COMPLETE") for resource in resources)
            steps.update(title, Phase.RUNNING, f"{state.message}; {done} of {len(resources)} resources done")
            if self.pool in (SYSTEM, TRAIN) and not state.status.startswith("DELETE"):
                self._watch_launches(state, steps)
            return False
        steps.update(title, Phase.DONE if state.complete else Phase.FAILED, state.message)
        return True

    def _watch_launches(self, state: StackState, steps: Steps) -> None:
        """Show why machines do not start; raise a permanent reason long before EKS gives up."""
        failures = machines.launch_failures(self.session, self.cluster, self.pool)
        message = next((message for id_, message in failures.items() if id_ not in self.known_failures), "")
        if message:
            permanent = machines.is_permanent(message)
            steps.update(f"{self.pool}: machines", Phase.FAILED if permanent else Phase.RUNNING, message)
            if permanent:
                if state.status == "CREATE_IN_PROGRESS":
                    self.delete()
                self.failed = [f"machines of {self.pool}: {message}"]
                raise self.error("call it again")

    def _show(self, resource: Mapping[str, Any], steps: Steps) -> None:
        """Show a slow or failed resource; one that existed before has no row."""
        status, kind = resource["ResourceStatus"], resource["ResourceType"]
        name = resource["LogicalResourceId"]
        ended = {"COMPLETE": Phase.DONE, "FAILED": Phase.FAILED}.get(status.rpartition("_")[2])
        if (kind in USUAL and not ended) or ended is Phase.FAILED or name in self._shown:
            self._shown.add(name)
            usual = 0.0 if "DELETE" in status else USUAL.get(kind, 0.0)
            reason, title = (
                resource.get("ResourceStatusReason") or "",
                f"{self.pool or 'cluster'}: {row(name)}",
            )
            steps.update(title, ended or Phase.RUNNING, reason, usual=usual)

    def error(self, fix: str) -> "StackFailed":
        """Build the error for a failed stack from its failed resources."""
        state = self._describe_any()
        what = (
            self.failed[0]
            if self.failed
            else f"{state.status}: {state.reason}"
            if state
            else "it was deleted"
        )
        failure = StackFailed(what, about=self.about, fix=fix, detail="\n".join(self.failed[1:]))
        reasons = {classify("amazon", message).reason for message in self.failed}
        failure.stockout = ErrorReason.STOCKOUT in reasons
        return failure


def await_stacks(stacks: Iterable[Stack], steps: Steps, *, fix: str) -> None:
    """Wait until no operation is in progress on these stacks, whether they succeed or fail."""
    waiting, deadline = list(stacks), steps.clock.now() + TIMEOUT_SECONDS
    names = ", ".join(stack.name for stack in waiting)
    try:
        while waiting := [stack for stack in waiting if not stack.report(steps)]:
            if steps.clock.now() > deadline:
                states = "; ".join(f"{stack.name} is {stack.describe()}" for stack in waiting)
                message = f"not done after {duration(TIMEOUT_SECONDS)}: {states}"
                raise WaitTimeout(message, about=names, fix=fix)
            steps.sleep(POLL_SECONDS)
    except KeyboardInterrupt as error:
        message = "stopped waiting; CloudFormation continues in the background, and charges may apply"
        raise Interrupted(message, about=names, fix=fix) from error


def retry_transient(steps: Steps, request: Callable[[], object]) -> object:
    """Retry transient errors for three minutes: IAM is eventually consistent."""
    deadline = steps.clock.now() + RETRY_SECONDS
    while True:
        try:
            return request()
        except AwsError as error:
            if not error.transient or steps.clock.now() > deadline:
                raise
        steps.sleep(5.0)


def stacks_of(session: AwsSession, cluster: str | None = None) -> list[tuple[Stack, StackState]]:
    """Find the stacks of one cluster, or of all the kit's clusters in the region."""
    if cluster is not None:
        described = [(stack, stack.describe()) for stack in (Stack(session, cluster, pool) for pool in POOLS)]
        return [(stack, state) for stack, state in described if state is not None]
    stacks = []
    for stack in session.paginate("cloudformation", "describe_stacks", "Stacks"):
        state = state_of(stack)
        name, owner_tags = state.parameters.get("ClusterName", ""), tags.read(state.tags)
        pool = stack["StackName"].removeprefix(f"trainyard-{name}").lstrip("-")
        if owner_tags and name and pool in POOLS:
            stacks.append((Stack(session, name, pool), state))
    return stacks


def read_expiry(stacks: Iterable[tuple[Stack, StackState]], cluster: str) -> datetime | None:
    """Read a cluster's expiry: while its schedules are being updated, the earlier of the two."""
    for stack, state in stacks:
        if (stack.cluster, stack.pool) == (cluster, END):
            times = (
                tags.read_time(values.get("Expires", "")) for values in (state.outputs, state.parameters)
            )
            return min(filter(None, times), default=None)
    return None


def row(name: str) -> str:
    """Convert a logical id to words: ``NatGateway`` to ``nat gateway``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def state_of(description: Mapping[str, Any]) -> StackState:
    """Convert CloudFormation's description of a stack."""
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
    """Describe why a resource failed; empty if it did not, or only because another one did."""
    reason = resource.get("ResourceStatusReason") or ""
    if not resource["ResourceStatus"].endswith("FAILED") or _CANCELLED.search(reason):
        return ""
    return f"{resource['LogicalResourceId']} ({resource['ResourceType']}): {reason}"


def _parameter_list(parameters: Mapping[str, object]) -> list[dict[str, Any]]:
    """Convert parameters to CloudFormation's list; None keeps the present value."""
    return [
        {"ParameterKey": key}
        | ({"UsePreviousValue": True} if value is None else {"ParameterValue": str(value)})
        for key, value in parameters.items()
    ]
