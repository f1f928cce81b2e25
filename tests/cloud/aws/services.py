"""Who answers what: the fake's own services, what is checked before moto answers, what follows from it."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends

from . import policies, wire
from .builds import Builds
from .calls import Call, Refused
from .eks import Eks
from .identities import ACCOUNT
from .network import Ec2
from .prices import Pricing
from .quotas import Quotas
from .schedules import Schedules
from .wire import Answer, Question

if TYPE_CHECKING:
    from .server import FakeAmazon

# What an action makes, and which operations look at it: for eventual consistency.
LOOKS = {
    "ec2:CreateVpc": ("vpcs", "DescribeVpcs"),
    "ec2:CreateSubnet": ("subnets", "DescribeSubnets"),
    "ec2:CreateSecurityGroup": ("groups", "DescribeSecurityGroups"),
    "ec2:CreateInternetGateway": ("internet_gateways", "DescribeInternetGateways"),
    "ec2:CreateRouteTable": ("route_tables", "DescribeRouteTables"),
    "elasticfilesystem:CreateFileSystem": ("file_systems_by_id", "DescribeFileSystems"),
    "eks:CreateCluster": None,
    "iam:CreateRole": None,
}


@dataclass(frozen=True)
class Backing:
    """A real cluster that stands behind a created one."""

    endpoint: str
    ca: str
    on_nodes: Callable[[str, dict[str, Any], int], None] | None = None


class Services:
    """All of one fake."""

    def __init__(self, amazon: "FakeAmazon") -> None:
        self.amazon = amazon
        self.eks = Eks(amazon)
        self.ec2 = Ec2(amazon)
        self.quotas = Quotas()
        self.pricing = Pricing()
        self.schedules = Schedules(amazon)
        self.builds = Builds()
        self.reset()

    def reset(self) -> None:
        """Forget what was set."""
        self.lags: dict[str, int] = {}
        self.failures: dict[tuple[str, str], dict[str, Any]] = {}
        self._unseen: dict[tuple[str, str], int] = {}
        for each in (self.ec2, self.quotas, self.pricing, self.schedules):
            each.reset()

    def lag(self, action: str, looks: int) -> None:
        """Hide what an action makes from so many looks.

        Of ``iam:CreateRole`` it is EKS that looks: the role is refused so many times.
        """
        if action not in LOOKS:
            raise ValueError(f"{action} cannot lag; these can: {', '.join(LOOKS)}")
        self.lags[action] = looks

    def catch_up(self) -> None:
        """Let all that was made be seen, from now on at once."""
        self.lags.clear()
        self._unseen.clear()
        self.eks.catch_up()

    def unseen(self, action: str, name: str) -> bool:
        """Return whether a thing is still hidden; each question is a look."""
        left = self._unseen.setdefault((action, name), self.lags.get(action, 0))
        self._unseen[action, name] = max(left - 1, 0)
        return left > 0

    def execute(self, question: Question, call: Call, moto: Callable[[Question], Answer]) -> Answer:
        """Answer a call.

        Raises:
            AwsError: The service says no.
        """
        own = self._own(question)
        if own is not None:
            return wire.write(question, own(question))
        name = f"{question.service}:{question.operation}"
        own = self.ec2.instead.get(name)
        if own is not None and (result := own(question)) is not None:
            return wire.write(question, result)
        for check in self.ec2.before.get(name, ()):
            check(question)
        if name == "iam:AttachRolePolicy":
            policies.provide(question)
        if name.startswith("scheduler:"):
            self.schedules.before(question)
        answer = self._moto_with_lag(question, call, moto)
        if question.service == "ecr" and self.amazon.registry:
            host = f"{ACCOUNT}.dkr.ecr.{question.region}.amazonaws.com".encode()
            answer = replace(answer, body=answer.body.replace(host, self.amazon.registry.encode()))
        if answer.status < 300:
            for each in (self.ec2, self.schedules, self.builds):
                for follow in each.after.get(name, ()):
                    follow(question)
        return answer

    def direct(self, question: Question) -> None:
        """Do what another service of Amazon asks for; only of those that are the fake's own.

        Raises:
            AwsError: The service says no.
        """
        own = self._own(question)
        if own is None:
            raise Refused("InternalFailure", f"this fake's schedules cannot call {question.action}")
        own(question)

    def _own(self, question: Question) -> Callable[[Question], dict[str, Any]] | None:
        owner = {"eks": self.eks, "service-quotas": self.quotas, "pricing": self.pricing}.get(
            question.service
        )
        if owner is None:
            return {
                "sts:GetCallerIdentity": self._identity,
                "iam:SimulatePrincipalPolicy": self._simulate,
            }.get(question.action)
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", question.operation).lower()
        found = getattr(owner, method, None)
        if found is None:
            raise Refused(
                "InternalFailure", f"this fake has no {question.service}:{question.operation}", status=501
            )
        return found

    def _identity(self, question: Question) -> dict[str, Any]:
        arn = self.amazon.identities.arn(question.key)
        return {"Arn": arn, "Account": arn.split(":")[4], "UserId": f"AIDA{arn.split('/')[-1].upper()}"}

    def _simulate(self, question: Question) -> dict[str, Any]:
        """Say what the caller may do: all but what a test has denied."""
        denied = self.amazon.faults.denied
        rows = []
        for action in question.parameters["ActionNames"]:
            found = [explicit for pattern, explicit in denied.items() if fnmatchcase(action, pattern)]
            decision = "explicitDeny" if any(found) else "implicitDeny" if found else "allowed"
            rows.append({"EvalActionName": action, "EvalResourceName": "*", "EvalDecision": decision})
        return {"EvaluationResults": rows, "IsTruncated": False}

    def _moto_with_lag(self, question: Question, call: Call, moto: Callable[[Question], Answer]) -> Answer:
        if not self.lags:
            return moto(question)
        hidden = list(self._hide(question))
        before = {id(each): set(each) for each in _collections(call.action, question.region)}
        try:
            answer = moto(question)
        finally:
            for collection, key, thing in hidden:
                collection[key] = thing
        for collection in _collections(call.action, question.region):
            for key in set(collection) - before.get(id(collection), set()):
                self._unseen[call.action, key] = self.lags.get(call.action, 0)
        return answer

    def _hide(self, question: Question) -> Iterable[tuple[dict[str, Any], str, Any]]:
        for (action, name), left in list(self._unseen.items()):
            how = LOOKS.get(action)
            everything = question.service == "resourcegroupstaggingapi"
            if not left or how is None or not (everything or question.operation == how[1]):
                continue
            self._unseen[action, name] = left - 1
            for collection in _collections(action, question.region):
                if name in collection:
                    yield collection, name, collection.pop(name)

    def control(self, environ: dict[str, Any], start_response: Callable) -> list[bytes]:
        """Answer on ``/_fake/…``: the same as the methods of `FakeAmazon`, for other processes."""
        verb = environ["PATH_INFO"].removeprefix("/_fake/")
        length = int(environ.get("CONTENT_LENGTH") or 0)
        given = json.loads(environ["wsgi.input"].read(length) or b"{}")
        amazon = self.amazon
        acts: dict[str, Callable[..., Any]] = {
            "advance": amazon.clock.advance,
            "run": amazon.clock.run,
            "now": amazon.clock.now,
            "left": lambda: [asdict(each) for each in amazon.left()],
            "calls": lambda: [asdict(each) for each in amazon.calls],
            "fired": lambda: [asdict(each) for each in self.schedules.fired],
            **{
                name: getattr(amazon, name)
                for name in (
                    "reset",
                    "fail",
                    "cut",
                    "deny",
                    "delay",
                    "lag",
                    "offer",
                    "quota",
                    "backing",
                    "break_",
                )
            },
        }
        status, said = "200 OK", None
        try:
            said = acts[verb](**given)
        except (KeyError, TypeError, ValueError) as error:
            status, said = "400 Bad Request", str(error)
        body = json.dumps(said, default=str).encode()
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _collections(action: str, region: str) -> list[dict[str, Any]]:
    """Return moto's own dicts of what an action makes."""
    how = LOOKS.get(action)
    if how is None:
        return []
    backends = efs_backends if action.startswith("elasticfilesystem") else ec2_backends
    found = getattr(backends[ACCOUNT][region], how[0])
    return list(found.values()) if how[0] in ("subnets", "groups") else [found]
