"""EventBridge Scheduler: what moto only keeps is carried out here when the simulated time has come.

A target is a universal one, ``arn:aws:scheduler:::aws-sdk:eks:deleteNodegroup``: an operation of any service,
its input in JSON with the names of the parameters beginning with a capital letter. It is done with the rights
of the schedule's role. What the service refuses is not tried again, unless it was throttled or broken.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from moto.core.utils import get_service_model
from moto.iam.models import iam_backends
from moto.scheduler.models import scheduler_backends

from .calls import Call, Refused
from .identities import ACCOUNT
from .wire import Question

if TYPE_CHECKING:
    from .server import FakeAmazon

UNIVERSAL = re.compile(r"arn:aws:scheduler:::aws-sdk:(?P<service>[a-z0-9-]+):(?P<operation>[a-zA-Z0-9]+)")
UNITS = {"minute": 60, "hour": 3600, "day": 86400}
RETRY = 60.0
BUSY = ("ThrottlingException", "InternalFailure", "ServerException", "ServiceUnavailableException")


@dataclass
class Fired:
    """A target that was called.

    Attributes:
        when: Simulated time.
        schedule: ``group/name``.
        action: As IAM writes it.
        parameters: Of the call.
        outcome: ``ok`` or the error's code.
        words: The error's message.
    """

    when: float
    schedule: str
    action: str
    parameters: dict[str, Any]
    outcome: str
    words: str = ""


class Schedules:
    """All schedules of one fake."""

    def __init__(self, amazon: "FakeAmazon") -> None:
        self.amazon = amazon
        self.after: dict[str, list[Callable[[Question], None]]] = {
            "scheduler:CreateSchedule": [self._plan],
            "scheduler:UpdateSchedule": [self._plan],
        }
        self.reset()

    def reset(self) -> None:
        """Forget what was fired."""
        self.fired: list[Fired] = []
        self.told: dict[tuple[str, str], Question] = {}

    def before(self, question: Question) -> None:
        """Refuse what the service does not take."""
        if question.operation not in ("CreateSchedule", "UpdateSchedule"):
            return
        given = question.parameters
        target = given["Target"]
        self._check_group(question)
        found = UNIVERSAL.fullmatch(target["Arn"])
        if found is None or _operation(found) is None:
            raise Refused("ValidationException", f"Provided Arn is not in correct format: {target['Arn']}")
        if found["operation"].startswith(("get", "describe", "list")):
            words = f"Read-only API actions are not supported as targets: {target['Arn']}"
            raise Refused("ValidationException", words)
        try:
            json.loads(target.get("Input") or "{}")
        except ValueError as error:
            raise Refused("ValidationException", "Input must be valid JSON") from error
        role = _role(target["RoleArn"])
        if role is None or "scheduler.amazonaws.com" not in json.dumps(role.assume_role_policy_document):
            words = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            raise Refused("ValidationException", words)
        _first(given, self.amazon.clock.now())

    def _check_group(self, question: Question) -> None:
        group = question.parameters.get("GroupName") or "default"
        if group not in scheduler_backends[ACCOUNT][question.region].schedule_groups:
            raise Refused("ResourceNotFoundException", f"Schedule group {group} does not exist.")

    def _plan(self, question: Question) -> None:
        given = question.parameters
        when = _first(given, self.amazon.clock.now())
        self.told[given.get("GroupName") or "default", given["Name"]] = question  # older ones count no more
        if when is not None:
            self.amazon.clock.at(when, lambda: self._fire(question))

    def _fire(self, question: Question, tried: int = 0) -> None:
        given = question.parameters
        name, group = given["Name"], given.get("GroupName") or "default"
        groups = scheduler_backends[ACCOUNT][question.region].schedule_groups
        found = groups[group].schedules.get(name) if group in groups else None
        if found is None or self.told.get((group, name)) is not question or found.state != "ENABLED":
            return
        done = self._call(question, found.target, f"{group}/{name}")
        self.fired.append(done)
        retries = found.target.get("RetryPolicy", {}).get("MaximumRetryAttempts", 185)
        if done.outcome in BUSY and tried < retries:
            self.amazon.clock.after(RETRY, lambda: self._fire(question, tried + 1))
            return
        following = _following(given, self.amazon.clock.now())
        if following is not None:
            self.amazon.clock.at(following, lambda: self._fire(question))
        elif given.get("ActionAfterCompletion") == "DELETE":
            groups[group].schedules.pop(name, None)

    def _call(self, question: Question, target: dict[str, Any], schedule: str) -> Fired:
        found = UNIVERSAL.fullmatch(target["Arn"])
        model = _operation(found)
        prefix = model.service_model.signing_name
        action, now = f"{prefix}:{model.name}", self.amazon.clock.now()
        given = json.loads(target.get("Input") or "{}")
        parameters = _members(given, model.input_shape)
        ask = Question(found["service"], prefix, question.region, "", model, parameters, {}, False)
        fired = Fired(now, schedule, action, parameters, "ok")
        try:
            missing = [each for each in model.input_shape.required_members if each not in parameters]
            if missing:
                raise Refused("ValidationException", f"missing {', '.join(missing)}")
            _may(target["RoleArn"], action)
            call = Call(0, action, found["service"], model.name, question.region, parameters, now, "")
            for rule in self.amazon.faults.rules:
                if rule.applies(call) and hasattr(rule, "refusal"):
                    raise rule.refusal()
            self.amazon.services.direct(ask)
        except Refused as error:
            fired.outcome, fired.words = error.code, error.message
        return fired


def _operation(found: re.Match[str]) -> Any:
    name = found["operation"][:1].upper() + found["operation"][1:]
    try:
        model = get_service_model(found["service"])
    except Exception:  # noqa: BLE001 botocore has several for a service that it does not know
        return None
    return model.operation_model(name) if name in model.operation_names else None


def _members(given: dict[str, Any], shape: Any) -> dict[str, Any]:
    """Return the input with the members' own names: ``ClusterName`` is EKS's ``clusterName``."""
    names = {name[:1].upper() + name[1:]: name for name in shape.members}
    return {names[key]: value for key, value in given.items() if key in names}


def _role(arn: str) -> Any:
    return next((each for each in iam_backends[ACCOUNT]["aws"].roles.values() if each.arn == arn), None)


def _may(arn: str, action: str) -> None:
    role = _role(arn)
    documents = [] if role is None else [*role.policies.values()]
    documents += [] if role is None else [each.document for each in role.managed_policies.values()]
    for document in documents:
        for statement in _list(json.loads(document)["Statement"]):
            if statement["Effect"] == "Allow" and any(
                fnmatchcase(action, each) for each in _list(statement["Action"])
            ):
                return
    words = f"User: {arn} is not authorized to perform: {action} because no identity-based policy allows it"
    raise Refused("AccessDeniedException", words)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _first(given: dict[str, Any], now: float) -> float | None:
    """Return when it is due first; None for a time that has passed.

    Raises:
        AwsError: The expression says nothing that the service understands.
    """
    expression = given["ScheduleExpression"]
    if at := re.fullmatch(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)", expression):
        zone = ZoneInfo(given.get("ScheduleExpressionTimezone") or "UTC")
        when = datetime.fromisoformat(at[1]).replace(tzinfo=zone).astimezone(UTC).timestamp()
        return when if when >= now else None
    if rate := re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", expression):
        start = given.get("StartDate")
        return max(now, start.timestamp()) if start else now + int(rate[1]) * UNITS[rate[2]]
    raise Refused("ValidationException", f"Invalid Schedule Expression {expression}.")


def _following(given: dict[str, Any], now: float) -> float | None:
    rate = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", given["ScheduleExpression"])
    if rate is None:
        return None
    when = now + int(rate[1]) * UNITS[rate[2]]
    end = given.get("EndDate")
    return None if end and when > end.timestamp() else when
