"""Calls, and what goes wrong with them on purpose: errors, connections that are cut, missing rights.

A rule names actions by a pattern (``eks:CreateCluster``, ``ec2:Describe*``, ``*``) and counts the calls that
match it, from when the rule was made.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from moto.core.exceptions import ServiceException

ACCOUNT = "123456789012"
INSTRUCTOR = f"arn:aws:iam::{ACCOUNT}:user/instructor"
ADMINISTRATOR, ADMINISTRATORS_KEY = f"arn:aws:iam::{ACCOUNT}:user/administrator", "AKIAADMINISTRATOR"
MESSAGES = {"Throttling": "Rate exceeded", "ServiceUnavailable": "Service is unable to handle request."}


class Refused(ServiceException):
    """What a service answers in place of a result; ``details`` are the other members of the error's shape."""

    def __init__(self, code: str, message: str, *, status: int | None = None, **details: Any) -> None:
        super().__init__(code, message)
        self.status = status
        for name, value in details.items():
            setattr(self, name, value)


@dataclass
class Call:
    """One request: its action as IAM writes it; its outcome is ``ok``, the error's code, or a cut."""

    action: str
    service: str
    operation: str
    region: str
    parameters: dict[str, Any]
    when: float
    key: str
    outcome: str = field(default="")

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.operation.startswith(("Describe", "List", "Get", "Head", "BatchGet", "Simulate"))


@dataclass
class Rule:
    """One thing that goes wrong, the nth to the (nth + times - 1)th time that an action is called.

    Attributes:
        error: The code of the service's answer; empty for a connection that is cut.
        after: Whether it takes effect all the same.
        inside: Whether it meets what stacks and schedules do, rather than what comes over HTTP.
    """

    pattern: str
    nth: int
    error: str = ""
    times: int | None = 1
    message: str | None = None
    after: bool = False
    inside: bool = False
    seen: int = 0

    def applies(self, action: str, *, inside: bool = False) -> bool:
        """Return whether it does now; counts the call."""
        if inside is not self.inside or not fnmatchcase(action, self.pattern):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)

    def refusal(self) -> Refused:
        """Return the error."""
        words = MESSAGES.get(self.error, f"{self.error}, as the test says")
        return Refused(self.error, self.message or words)


class Faults:
    """All rules of a fake, and whose the access keys are."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let everything be as it should; every key but the administrator's is the instructor's."""
        self.rules: list[Rule] = []
        self.denied: dict[str, bool] = {}  # by pattern of actions, for IAM's simulation: explicitly?
        self.identities = {ADMINISTRATORS_KEY: ADMINISTRATOR}  # ARN by access key
        self.secrets: dict[str, str] = {}

    def arn(self, key: str) -> str:
        """Return whose a key is, as STS gives it."""
        return self.identities.get(key, INSTRUCTOR)


def principal(arn: str) -> str:
    """Return the IAM ARN behind STS's: of a session, its role; EKS's access entries name these."""
    head, separator, rest = arn.partition(":assumed-role/")
    return f"{head.replace(':sts:', ':iam:')}:role/{rest.split('/')[0]}" if separator else arn
