"""One CloudFormation stack: create it, change it, delete it, and follow its events.

A stack belongs to the kit if it has the kit's tag. What was created stays where something fails: a missing
GPU does not destroy a control plane.
https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/stack-failure-options.html
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kitlib.errors import Interrupted, WaitTimeout
from trainyard_kit.clouds import tags
from trainyard_kit.clouds.cloud_errors import ErrorReason, classify
from trainyard_kit.clouds.eks import machines
from trainyard_kit.clouds.eks.client_errors import AwsError, foreign
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list
from trainyard_kit.clouds.steps import Phase, Steps, duration

SYSTEM, TRAIN = "system", "train"
NONE = range(0)  # no network cards
POOLS = ("", SYSTEM, TRAIN)
POLL, PATIENCE, LONGEST = 15.0, 180.0, 5400.0  # seconds
# Resources that take noticeable time have a row of their own, with the seconds that they usually take.
USUAL = {
    "AWS::EKS::Cluster": 480.0,
    "AWS::EC2::NatGateway": 120.0,
    "AWS::EFS::MountTarget": 90.0,
    "AWS::EKS::Nodegroup": 180.0,
    "AWS::EKS::Addon": 60.0,
}
BEGUN = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
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
    def words(self) -> str:
        """Its status for people."""
        return self.status.lower().replace("_", " ")


class StackFailed(AwsError):
    """A stack did not become what was asked; at a stockout, the zone had no machines of this type."""

    stockout = False


class Stack:
    """A stack of a cluster: of its pool ``system`` or ``train``; without a pool, of the cluster itself."""

    def __init__(self, session: AwsSession, cluster: str, pool: str = "") -> None:
        self.session, self.cluster, self.pool = session, cluster, pool
        self.name = f"trainyard-{cluster}-{pool}".rstrip("-")
        self.about = f"stack {self.name} in {session.region}"
        self._seen: set[str] = set()
        self.known_failures: Mapping[str, str] = {}  # scaling activities from before the operation
        self._begin("", self.name)

    def describe(self) -> StackState | None:
        """Describe it; None if there is none, or if it is not the kit's."""
        description = self._found()
        return None if description is None or tags.read(description.tags) is None else description

    def _found(self) -> StackState | None:
        fine = ("ValidationError",)  # there is none
        answer = self.session.call("cloudformation", "describe_stacks", fine=fine, StackName=self._id)
        description = answer["Stacks"][0] if answer else {"StackStatus": "DELETE_COMPLETE"}
        return None if description["StackStatus"] == "DELETE_COMPLETE" else state_of(description)

    def create(
        self,
        parameters: Mapping[str, object],
        stack_tags: Mapping[str, str],
        *,
        role: str,
        adapters: range = NONE,
    ) -> None:
        """Begin to create it, unless somebody else has; ``adapters`` are network cards with one."""
        token, part = f"create-{uuid.uuid4().hex}", "nodes" if self.pool else "cluster"
        answer = self.session.call(
            "cloudformation",
            "create_stack",
            fine=("AlreadyExistsException",),
            StackName=self.name,
            TemplateBody=with_adapters(adapters) if adapters.stop > 1 else template(part),
            Parameters=_written(parameters),
            Tags=as_list(stack_tags),
            Capabilities=["CAPABILITY_NAMED_IAM"],
            DisableRollback=True,
            ClientRequestToken=token,
            RoleARN=role,
        )
        if answer:
            self._begin(token, answer["StackId"])
        elif self.describe() is None:
            raise foreign(self.about)

    def update(self, parameters: Mapping[str, object]) -> bool:
        """Begin to change parameters, or continue a failed stack; return whether there is anything to change.

        Tags stay as they are: some resources, such as placement groups, would be replaced for them.
        """
        now, token = self.describe(), f"update-{uuid.uuid4().hex}"
        if now is None:
            raise self.error("call it again")
        unchanged = {key: None for key in now.parameters if key not in parameters}
        # Resources that were created stay where one fails: else a failed creation would be rolled back.
        more: dict[str, Any] = {"DisableRollback": True} if now.resumable else {}
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
                ClientRequestToken=token,
                **more,
            )
        except AwsError as error:
            if "No updates are to be performed" in error.what:
                return False
            raise
        self._begin(token, now.id)
        return True

    def delete(self) -> None:
        """Begin to delete it."""
        now = self._found()
        if now is not None:
            token = f"delete-{uuid.uuid4().hex}"
            self.session.call("cloudformation", "delete_stack", StackName=now.id, ClientRequestToken=token)
            self._begin(token, now.id)

    def _begin(self, token: str, identity: str) -> None:
        self._token, self._id = token, identity  # of an operation of this process's own; or neither
        self._row, self._over, self._idle, self._done = f"stack {self.name}", False, 0, 0
        self.failed: list[str] = []  # what failed in the operation, the cause first

    # Following

    def settled(self, steps: Steps) -> bool:
        """Show what has happened since the last call; return whether CloudFormation is done with it."""
        now = self._found()
        for event in self._events():
            self._show(event, steps)
        if now is None:
            steps.update(self._row, Phase.DONE, "deleted")
            return True
        if now.busy:
            self._idle = 0
            steps.update(self._row, Phase.RUNS, f"{now.words}; {self._done} resources done")
            if self.pool and not now.status.startswith("DELETE"):
                self._watch_launches(now, steps)
            return False
        self._idle += 1  # its state may be older than its events, for a moment
        if self._token and not self._over and self._idle < 4:
            return False
        steps.update(self._row, Phase.DONE if now.complete else Phase.FAILED, now.words)
        return True

    def _watch_launches(self, now: StackState, steps: Steps) -> None:
        """Show why machines do not start; where no waiting helps, stop long before EKS gives up on them."""
        failed = machines.launch_failures(self.session, self.cluster, self.pool)
        if words := next((words for key, words in failed.items() if key not in self.known_failures), ""):
            steps.update(f"{self.pool}: machines", Phase.RUNS, words)
            if machines.hopeless(words):
                steps.update(f"{self.pool}: machines", Phase.FAILED, words)
                if now.status == "CREATE_IN_PROGRESS":
                    self.delete()
                self.failed = [f"machines of {self.pool}: {words}"]
                raise self.error("call it again")

    def _events(self) -> list[dict[str, Any]]:
        """The events of the current operation that are new, oldest first."""
        events = []
        try:
            for event in self.session.every(
                "cloudformation", "describe_stack_events", "StackEvents", StackName=self._id
            ):
                token = event.get("ClientRequestToken", "")
                if event["EventId"] in self._seen or (self._token and token != self._token):
                    break
                events.append(event)
                root = event.get("PhysicalResourceId") == event["StackId"]
                if root and event["ResourceStatus"] in BEGUN:
                    break
        except AwsError as error:
            if error.code != "ValidationError":  # it is gone, and was known by its name alone
                raise
        self._seen |= {event["EventId"] for event in events}
        return events[::-1]

    def _show(self, event: dict[str, Any], steps: Steps) -> None:
        status, reason = event["ResourceStatus"], event.get("ResourceStatusReason", "")
        name, kind = event["LogicalResourceId"], event["ResourceType"]
        if event.get("PhysicalResourceId") == event["StackId"]:
            self._over = not status.endswith("IN_PROGRESS")
            return
        self._done += status.endswith("COMPLETE")
        if status.endswith("FAILED") and not _CANCELLED.search(reason):
            self.failed.append(f"{name} ({kind}): {reason}")
        if kind in USUAL or status.endswith("FAILED"):
            phases = {"COMPLETE": Phase.DONE, "FAILED": Phase.FAILED}
            phase = phases.get(status.rpartition("_")[2], Phase.RUNS)
            usual = 0.0 if "DELETE" in status else USUAL.get(kind, 0.0)
            steps.update(f"{self.pool or 'cluster'}: {row(name)}", phase, reason, usual=usual)

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
        words = "stopped waiting; CloudFormation continues what was begun, and it may cost"
        raise Interrupted(words, about=names, fix=fix) from error


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
        if owner_tags and name and stack["StackName"].startswith(f"trainyard-{name}"):
            stacks.append((Stack(session, name, now.parameters.get("Pool", "")), now))
    return stacks


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


def template(name: str) -> str:
    """Read a template: ``cluster`` or ``nodes``."""
    return Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")


class _Template(yaml.SafeLoader):
    """Reads CloudFormation's short functions, ``!Ref``, as their long forms, which JSON has."""

    def function(self, name: str, node: yaml.Node) -> dict[str, Any]:
        """Construct ``{"Fn::Sub": …}`` of a node with the tag ``!Sub``."""
        if isinstance(node, yaml.ScalarNode):
            value = self.construct_scalar(node)
            value = value.split(".", 1) if name == "GetAtt" else value
        elif isinstance(node, yaml.SequenceNode):
            value = self.construct_sequence(node, deep=True)
        else:
            value = self.construct_mapping(node, deep=True)
        return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


_Template.add_multi_constructor("!", _Template.function)


def with_adapters(network_cards: range) -> str:
    """Write the template of nodes, as JSON, with a fabric adapter on each of these network cards.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
    """
    parsed = yaml.load(template("nodes"), _Template)
    data = parsed["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
    _, (first,), none = data["NetworkInterfaces"]["Fn::If"]
    cards = [first if 0 in network_cards else first | {"InterfaceType": "interface"}]
    cards += [first | {"NetworkCardIndex": card, "DeviceIndex": 1} for card in network_cards if card]
    data["NetworkInterfaces"]["Fn::If"] = ["Fabric", cards, none]
    return json.dumps(parsed)


def _written(parameters: Mapping[str, object]) -> list[dict[str, Any]]:
    """Write parameters; None keeps the value that there is."""
    return [
        {
            "ParameterKey": key,
            **({"UsePreviousValue": True} if value is None else {"ParameterValue": str(value)}),
        }
        for key, value in parameters.items()
    ]
