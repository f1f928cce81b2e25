"""The fake AWS: the HTTP server, and all that a test can say to it and ask of it."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.awsrequest import AWSResponse
from moto.core.base_backend import BackendDict
from moto.core.botocore_stubber import MockRawResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server
from werkzeug.test import EnvironBuilder

from ..simulated_clock import SimulatedClock
from ..tokens import review
from . import network, remains, tokens, users, wire
from .cloudformation import CloudFormation
from .eks import Eks
from .faults import ACCOUNT, INSTRUCTOR, Call, Faults, Refused, Rule
from .quotas import Quotas
from .schedules import Schedules, may
from .wire import Answer, Question

ROLE_SECONDS = 8.0  # a new role cannot be used before
OWN = {"sts:GetCallerIdentity": "_identity", "iam:SimulatePrincipalPolicy": "_simulate"}
OWN |= {"ec2:DescribeCapacityReservations": "_reservations"}
OWN |= {"freetier:GetAccountPlanState": "_plan", "autoscaling:DescribeScalingActivities": "_activities"}


@dataclass(frozen=True)
class Backing:
    """A real cluster behind a created one; ``on_nodes(event, nodegroup, count)`` is told of nodes."""

    endpoint: str
    ca: str
    on_nodes: Callable[[str, dict[str, Any], int], None] | None = None


@contextmanager
def served(server: BaseWSGIServer) -> Iterator[str]:
    """Serve in a thread of its own; yield the URL."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://{server.host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class FakeAws:
    """One account, all regions. There is one in a process; `reset` between tests is cheap.

    Attributes:
        endpoint: For boto3's ``AWS_ENDPOINT_URL``.
        calls: What was asked over HTTP since the last reset, in order.
        clock: The time in which clusters take minutes; it stands still unless told.
        backings: The real clusters behind those of these names.
        page_size: How many things a page of an answer has, where a test says so.
    """

    def __init__(self, port: int = 0) -> None:
        self.clock, self.faults, self.quotas = SimulatedClock(), Faults(), Quotas()
        self._lock = self.clock.lock
        self._clients: dict[tuple[str, str], Any] = {}
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", port, self._answer, threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="aws", daemon=True
        )
        self.reset()

    def also_at(self, host: str) -> AbstractContextManager[str]:
        """Serve at another address of this machine, too, for pods, while in the context; yield the URL."""
        return served(make_server(host, 0, self._answer, threaded=True, request_handler=_Quiet))

    def __enter__(self) -> "FakeAws":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reset(self) -> None:
        """Begin again with an empty account, in which nothing goes wrong."""
        with self._lock:
            BackendDict.reset()
            self.clock.reset()
            self.faults.reset()
            self.quotas.values.clear()
            self.eks, self.cloudformation, self.schedules = Eks(self), CloudFormation(self), Schedules(self)
            self.calls: list[Call] = []
            self.backings: dict[str, Backing] = {}
            self.page_size: int | None = None
            self.reservations: dict[str, dict[str, Any]] = {}
            self.plan: tuple[str, str] | None = None  # type and status of the account's plan
            self.launches: dict[str, str] = {}  # by node group: why its machines do not start
            self._acting = ""
            self._since: dict[str, float] = {}

    def fail(self, action: str, nth: int = 1, error: str = "InternalFailure", **how: Any) -> None:
        """Refuse the nth call of an action from now on; the rest is as in `faults.Rule`."""
        self.faults.rules.append(Rule(action, nth, error, **how))

    def cut(self, nth: int, when: str = "before") -> None:
        """End the connection of the nth call from now on, ``before`` or ``after`` it took effect."""
        self.faults.rules.append(Rule("*", nth, after=when == "after"))

    def break_(self, noun: str, name: str, code: str, message: str) -> None:
        """Let the next ``Cluster``, ``Nodegroup`` or ``Addon`` of a name fail with an issue, in its time."""
        self.eks.broken[noun, name] = {"code": code, "message": message}

    def token_webhook(self, cluster: str) -> str:
        """Return the URL at which a backing cluster's API server asks whose a token is."""
        return f"{self.endpoint}/_tokens/{cluster}"

    def left(self) -> list[remains.Left]:
        """Return all that exists, in all services and regions, but what every account has."""
        with self._lock:
            self.clock.settle()
            alive = [stack for stack in self.cloudformation.stacks if not stack.ended]
            leftovers = [remains.Left("cloudformation", "stack", stack.name, stack.region) for stack in alive]
            return sorted([*leftovers, *remains.everything()], key=str)

    def actions(self) -> list[str]:
        """Return the names of the calls so far."""
        return [call.action for call in self.calls]

    def usable(self, arn: str) -> bool:
        """Return whether other services know a role already."""
        return self.clock.now() - self._since.get(arn.split("/")[-1], 0.0) >= ROLE_SECONDS

    def inside(self, service: str, region: str, acting: str = "") -> Any:
        """Return a client with which a service of the cloud calls others, by the rights of a role."""
        if (service, region) not in self._clients:
            session = boto3.session.Session("inside", "inside", region_name=region)
            client = session.client(service, endpoint_url=self.endpoint)
            client.meta.events.register("before-send", self._send_inside)
            self._clients[service, region] = client
        self._acting = acting
        return self._clients[service, region]

    def _send_inside(self, request: Any, **_: Any) -> AWSResponse:
        parts, body = urlsplit(request.url), request.body or b""
        headers = {
            key: header.decode() if isinstance(header, bytes) else header
            for key, header in request.headers.items()
        }
        about = {"method": request.method, "query_string": parts.query, "headers": headers}
        builder = EnvironBuilder(parts.path, data=body.encode() if isinstance(body, str) else body, **about)
        raw = {"RAW_URI": f"{parts.path}?{parts.query}" if parts.query else parts.path}
        question = wire.read(builder.get_environ() | raw)
        try:
            if self._acting:
                may(self._acting, question.action)
            for rule in self.faults.rules:
                if rule.applies(question.action, inside=True):
                    raise rule.refusal()
            answer = self._execute(question)
        except Refused as error:
            answer = wire.write(question, error)
        return AWSResponse(request.url, answer.status, dict(answer.headers), MockRawResponse(answer.body))

    def _execute(self, question: Question) -> Answer:
        """Do what a call asks for; the fault rules do not apply."""
        if question.service == "eks":
            return wire.write(question, self.eks.answer(question))
        handler = {"cloudformation": self.cloudformation, "service-quotas": self.quotas}.get(
            question.service, self
        )
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", question.operation).lower()
        method = OWN.get(question.action) if handler is self else method
        if method is not None and (result := getattr(handler, method)(question)) is not None:
            return wire.write(question, result)
        name = f"{question.service}:{question.operation}"
        planned = name in ("scheduler:CreateSchedule", "scheduler:UpdateSchedule")
        network.BEFORE.get(name, self.schedules.before if planned else lambda _: None)(question)
        answer = self._moto(question)
        if answer.status < 300:
            network.AFTER.get(name, self.schedules.after if planned else lambda _: None)(question)
            if name == "iam:CreateRole":
                self._since[question.parameters["RoleName"]] = self.clock.now()
        return answer

    def _identity(self, question: Question) -> dict[str, Any]:
        arn = self.faults.arn(question.key)
        return {"Arn": arn, "Account": arn.split(":")[4], "UserId": f"AIDA{arn.split('/')[-1].upper()}"}

    def _plan(self, question: Question) -> dict[str, Any]:
        if not self.plan:
            raise Refused("ResourceNotFoundException", "No account plan exists.")
        if question.region != "us-east-1":
            raise NotImplementedError("the Free Tier API is in us-east-1 alone")
        return {"accountId": ACCOUNT, "accountPlanType": self.plan[0], "accountPlanStatus": self.plan[1]}

    def _reservations(self, question: Question) -> dict[str, Any]:
        (name,) = question.parameters["CapacityReservationIds"]
        if name not in self.reservations:
            raise Refused("InvalidCapacityReservationId.NotFound", f"The ID '{name}' does not exist.")
        return {"CapacityReservations": [{"CapacityReservationId": name} | self.reservations[name]]}

    def _activities(self, question: Question) -> dict[str, Any]:
        """Say of a node group that cannot be filled that a launch failed, and of others nothing."""
        name = question.parameters["AutoScalingGroupName"]
        words = self.launches.get(name.split("-")[1])
        activity = f"{name}-{self.clock.now() // 60:.0f}"  # it tries again each minute
        row = {"ActivityId": activity, "AutoScalingGroupName": name, "Cause": "a difference"}
        row |= {"StartTime": self.clock.date(), "StatusCode": "Failed", "StatusMessage": words}
        return {"Activities": [row] if words else []}

    def _simulate(self, question: Question) -> dict[str, Any]:
        """Say what is denied; what a policy limited to ARNs allows reads as denied, but not explicitly."""
        rows = []
        for action in question.parameters["ActionNames"]:
            denials = [
                denial for pattern, denial in self.faults.denied.items() if fnmatchcase(action, pattern)
            ]
            decision = "explicitDeny" if any(denials) else "implicitDeny" if denials else "allowed"
            rows.append({"EvalActionName": action, "EvalResourceName": "*", "EvalDecision": decision})
        return {"EvaluationResults": rows, "IsTruncated": False}

    def _answer(self, environ: dict[str, Any], start_response: Callable) -> list[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_tokens/"):  # the API server of a backing cluster asks
            sent = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            cluster = path.removeprefix("/_tokens/")
            body = review(sent, lambda token: tokens.authenticate(self, cluster, token))
            start_response(
                "200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            )
            return [body]
        question = wire.read(environ)
        with self._lock:
            what = (question.action, question.service, question.operation, question.region)
            call = Call(*what, question.parameters, self.clock.now(), question.key)
            self.calls.append(call)
            rules = [rule for rule in self.faults.rules if rule.applies(call.action)]
        answer = self._refusal(question, call, rules)
        if answer is None:
            with suppress(OSError):
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError(call.outcome)
        headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} {'OK' if answer.status < 300 else 'Refused'}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _refusal(self, question: Question, call: Call, rules: list[Rule]) -> Answer | None:
        """Answer, or hang up, as the rules have it."""
        cuts = [rule.after for rule in rules if not rule.error]
        failure = next((rule for rule in rules if rule.error), None)
        if False in cuts:
            call.outcome = "cut before"
            return None
        try:
            if question.model is None:
                raise NotImplementedError(f"the models know no {call.action}")
            tokens.check_signature(self, question.environ)
            if self.faults.arn(question.key) == INSTRUCTOR:
                users.authorize(question)
            with self._lock:
                self.clock.settle()
                answer = self._execute(question) if failure is None or failure.after else None
            if failure is not None:
                raise failure.refusal()
            call.outcome = "ok" if answer.status < 400 else str(answer.status)
        except Refused as error:
            call.outcome, answer = error.code, wire.write(question, error)
        if True in cuts:
            call.outcome = "cut after"
            return None
        return answer

    def _moto(self, question: Question) -> Answer:
        head: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], _: Any = None) -> None:
            head.update(status=int(status.split()[0]), headers=headers)

        body = b"".join(self._app(question.environ, start))
        unwanted = ("content-length", "server", "date")
        headers = [(name, value) for name, value in head["headers"] if name.lower() not in unwanted]
        answer = Answer(head["status"], headers, body)
        return wire.as_cbor(question, answer) if question.cbor else answer


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        """Say nothing: `FakeAws.calls` has it."""
