"""EventBridge Scheduler: what moto only keeps is carried out here when the simulated time has come.

A target is an operation, ``arn:aws:scheduler:::aws-sdk:cloudformation:deleteStack``, with its input in
JSON. It is done with the rights of the schedule's role. What the service refuses is not tried again.
"""

import json
import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from moto.core.utils import get_service_model
from moto.scheduler.models import scheduler_backends

from .eks import role, trusted
from .faults import ACCOUNT, Refused
from .wire import Question

if TYPE_CHECKING:
    from .server import FakeAws

UNIVERSAL = re.compile(r"arn:aws:scheduler:::aws-sdk:([a-z0-9-]+):([a-zA-Z0-9]+)")
RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
UNITS = {"minute": 60, "hour": 3600, "day": 86400}


@dataclass
class Fired:
    """A target that was called: when (simulated), by which ``group/name``, what, and how it ended."""

    when: float
    schedule: str
    action: str
    parameters: dict[str, Any]
    outcome: str = "ok"
    words: str = ""


class Schedules:
    """All schedules of one fake."""

    def __init__(self, aws: "FakeAws") -> None:
        self.aws, self.clock = aws, aws.clock
        self.fired: list[Fired] = []
        self.told: dict[tuple[str, str, str], Question] = {}

    def before(self, question: Question) -> None:
        """Refuse what the service does not take."""
        parameters, target = question.parameters, question.parameters["Target"]
        if parameters["GroupName"] not in scheduler_backends[ACCOUNT][question.region].schedule_groups:
            raise Refused(
                "ResourceNotFoundException", f"Schedule group {parameters['GroupName']} does not exist."
            )
        if not RATE.fullmatch(parameters["ScheduleExpression"]) or "StartDate" not in parameters:
            raise Refused(
                "ValidationException", f"Invalid Schedule Expression {parameters['ScheduleExpression']}."
            )
        _operation(target["Arn"])
        if not trusted(target["RoleArn"], "scheduler.amazonaws.com") or not self.aws.usable(
            target["RoleArn"]
        ):
            words = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            raise Refused("ValidationException", words)

    def after(self, question: Question) -> None:
        """Plan what a schedule that was created or changed will do; what it was before counts no more."""
        parameters = question.parameters
        self.told[question.region, parameters["GroupName"], parameters["Name"]] = question
        self.clock.after(parameters["StartDate"].timestamp() - self.clock.now(), lambda: self._fire(question))

    def _fire(self, question: Question) -> None:
        parameters = question.parameters
        name, group = parameters["Name"], parameters["GroupName"]
        groups = scheduler_backends[ACCOUNT][question.region].schedule_groups
        schedule = groups[group].schedules.get(name) if group in groups else None
        if schedule is None or self.told[question.region, group, name] is not question:
            return
        self._call(question.region, schedule.target, f"{group}/{name}")
        number, unit = RATE.fullmatch(parameters["ScheduleExpression"]).groups()
        seconds = int(number) * UNITS[unit]
        if self.clock.now() + seconds <= parameters["EndDate"].timestamp():
            self.clock.after(seconds, lambda: self._fire(question))
        elif parameters.get("ActionAfterCompletion") == "DELETE":
            groups[group].schedules.pop(name, None)

    def _call(self, region: str, target: dict[str, Any], schedule: str) -> None:
        model, values = _operation(target["Arn"]), json.loads(target["Input"])
        names = {name[:1].upper() + name[1:]: name for name in model.input_shape.members}
        parameters = {names[key]: value for key, value in values.items()}
        action = f"{model.service_model.signing_name}:{model.name}"
        fired = Fired(self.clock.now(), schedule, action, parameters)
        self.fired.append(fired)
        client = self.aws.inside(model.service_model.service_name, region, target["RoleArn"])
        try:
            client._make_api_call(model.name, parameters)
        except (ClientError, BotoCoreError) as error:
            fired.outcome, fired.words = type(error).__name__, str(error)


def _operation(arn: str) -> Any:
    """Return the model of a target's operation; one that only reads is none."""
    service, name = UNIVERSAL.fullmatch(arn).groups() if UNIVERSAL.fullmatch(arn) else ("scheduler", "")
    model, name = get_service_model(service), name[:1].upper() + name[1:]
    if name not in model.operation_names or name.startswith(("Get", "Describe", "List")):
        raise Refused("ValidationException", f"Provided Arn is not in correct format: {arn}")
    return model.operation_model(name)


def may(arn: str, *actions: str) -> None:
    """Refuse what no policy of a role allows; resources and conditions are not looked at."""
    principal_role = role(arn)
    allowed = _allowed(tuple(principal_role.policies.values()) if principal_role else ())
    action = next((action for action in actions if not allowed.match(action)), None)
    if action is None:
        return
    words = f"User: {arn} is not authorized to perform: {action} because no identity-based policy allows it"
    raise Refused("AccessDenied", words, status=403)


@cache
def _allowed(documents: tuple[str, ...]) -> re.Pattern[str]:
    statements = [item for document in documents for item in _list(json.loads(document)["Statement"])]
    patterns = [translate(action) for statement in statements for action in _list(statement["Action"])]
    return re.compile("|".join(patterns) or "$.", re.IGNORECASE)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
