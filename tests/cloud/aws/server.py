"""The fake Amazon: the HTTP server, and all that a test can say to it and ask of it."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from moto.core.base_backend import BackendDict
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from ..tokens import review
from . import remains, services, tokens, wire
from .calls import Call, Refused
from .clock import SimulatedClock
from .faults import Cut, Failure, Faults
from .identities import Identities
from .waits import Waits
from .wire import Answer, Question


class FakeAmazon:
    """One account, all regions.

    There is one in a process: moto keeps what exists in its modules. `reset` between tests is cheap.

    Attributes:
        endpoint: For boto3's ``AWS_ENDPOINT_URL``.
        calls: What was asked since the last reset, in order.
        clock: The time in which clusters take minutes; it stands still unless told.
        waits: How long things take; see `delay`.
        registry: The address of a real registry that ECR shall name as its own; empty for Amazon's.
        identities: Whose the access keys are.

    Example:
        >>> with FakeAmazon() as amazon:
        ...     monkeypatch.setenv("AWS_ENDPOINT_URL", amazon.endpoint)
        ...     amazon.fail("eks:CreateNodegroup", nth=2, error="ThrottlingException")
        ...     make_a_cluster(clock=amazon.clock)
        ...     assert not amazon.left()
    """

    def __init__(self, port: int = 0) -> None:
        self.clock = SimulatedClock()
        self.faults = Faults()
        self.waits = Waits()
        self.identities = Identities()
        self.calls: list[Call] = []
        self.on_call: Callable[[Call, str], None] | None = None
        self.page_size: int | None = None
        self.backings: dict[str, services.Backing] = {}
        self._lock = threading.RLock()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", port, self._answer, threaded=True, request_handler=_Quiet)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-amazon")
        self.services = services.Services(self)
        self.reset()

    @property
    def fired(self) -> list[Any]:
        """What schedules have called so far: see `schedules.Fired`."""
        return self.services.schedules.fired

    def start(self) -> "FakeAmazon":
        """Begin to answer."""
        self._thread.daemon = True
        self._thread.start()
        return self

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "FakeAmazon":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Begin again with an empty account, in which nothing goes wrong."""
        with self._lock:
            BackendDict.reset()
            self.clock.reset()
            self.faults.reset()
            self.waits.reset()
            self.identities.reset()
            self.services.reset()
            self.calls.clear()
            self.backings.clear()
            self.on_call = self.page_size = None
            self.registry = ""

    def fail(
        self,
        action: str,
        nth: int = 1,
        error: str = "InternalFailure",
        *,
        message: str | None = None,
        times: int | None = 1,
        after: bool = False,
    ) -> None:
        """Refuse the nth call of an action from now on, and ``times`` of them (None: all that follow).

        With ``after`` it takes effect all the same.
        """
        self.faults.rules.append(Failure(action, nth, times, error=error, message=message, after=after))

    def cut(self, nth_call: int, when: str = "before", *, action: str = "*", times: int | None = 1) -> None:
        """End the connection of the nth call from now on, ``before`` or ``after`` it took effect.

        boto3 tries again by itself: ``times=None`` is a network that does not come back.
        """
        self.faults.rules.append(Cut(action, nth_call, times, when=when))

    def deny(self, action: str, *, explicit: bool = False) -> None:
        """Let the caller have no right to an action (a pattern)."""
        self.faults.denied[action] = explicit

    def delay(self, kind: str, seconds: float) -> None:
        """Say how long something takes: see `waits.SECONDS` for the kinds."""
        self.waits.set(kind, seconds)

    def lag(self, action: str, looks: int) -> None:
        """Let what an action makes be invisible for so many looks: see `services.Services.lag`."""
        self.services.lag(action, looks)

    def offer(self, instance_type: str, zones: list[str], *, region: str = "us-west-2") -> None:
        """Say in which zones a type of machine exists."""
        self.services.ec2.offers[region, instance_type] = zones

    def quota(self, code: str, value: float, *, region: str = "us-west-2") -> None:
        """Set the account's quota, as ``L-DB2E81BA`` (vCPUs of G and VT on demand)."""
        self.services.quotas.values[region, code] = value

    def backing(
        self,
        name: str,
        *,
        endpoint: str,
        ca: str,
        on_nodes: Callable[[str, dict[str, Any], int], None] | None = None,
    ) -> None:
        """Let the cluster of a name hand out the endpoint and CA (base64) of a real one.

        ``on_nodes(event, nodegroup, count)`` is told, in the server's thread, when nodes are to be there.
        """
        self.backings[name] = services.Backing(endpoint, ca, on_nodes)

    def break_(self, kind: str, name: str, code: str, message: str) -> None:
        """Let the next making of a ``cluster``, ``node group`` or ``add-on`` of a name fail with an issue.

        Codes of node groups: ``AsgInstanceLaunchFailures``, ``NodeCreationFailure`` …
        """
        self.services.failures[kind, name] = {"code": code, "message": message, "resourceIds": []}

    def token_webhook(self, cluster: str) -> str:
        """Return the URL at which a backing cluster's API server asks whose a token is."""
        return f"{self.endpoint}/_tokens/{cluster}"

    def left(self) -> list[remains.Left]:
        """Return all that exists, in all services and regions, but what every account has."""
        with self._lock:
            self.clock.settle()
            return remains.everything()

    def actions(self) -> list[str]:
        """Return the names of the calls so far."""
        return [call.action for call in self.calls]

    def execute(self, question: Question, call: Call) -> Answer:
        """Do what a call asks for; the fault rules do not apply."""
        with self._lock:
            self.clock.settle()
            try:
                return self.services.execute(question, call, self._moto)
            except Refused as error:
                return wire.write(question, error)

    def _answer(self, environ: dict[str, Any], start_response: Callable) -> list[bytes]:
        if environ["PATH_INFO"].startswith("/_fake/"):
            return self.services.control(environ, start_response)
        if environ["PATH_INFO"].startswith("/_tokens/"):
            return self._review(environ, start_response)
        with self._lock:
            question = wire.read(environ)
            call = self._note(question)
        answer = self._judge(question, call, environ.get("werkzeug.socket"))
        if answer is None:
            raise ConnectionAbortedError(call.outcome)
        headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} {'OK' if answer.status < 300 else 'Refused'}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _review(self, environ: dict[str, Any], start_response: Callable) -> list[bytes]:
        """Answer the API server of a backing cluster; the path ends with the cluster's name at Amazon."""
        cluster = environ["PATH_INFO"].removeprefix("/_tokens/")
        asked = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = review(asked, lambda token: tokens.judge(self, cluster, token))
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("200 OK", headers)
        return [body]

    def _note(self, question: Question) -> Call:
        call = Call(
            number=len(self.calls) + 1,
            action=question.action,
            service=question.service,
            operation=question.operation,
            region=question.region,
            parameters=question.parameters,
            when=self.clock.now(),
            key=question.key,
        )
        self.calls.append(call)
        return call

    def _judge(self, question: Question, call: Call, line: socket.socket | None) -> Answer | None:
        with self._lock:
            rules = [rule for rule in self.faults.rules if rule.applies(call)]
        cuts = {rule.when for rule in rules if isinstance(rule, Cut)}
        if self.on_call:
            self.on_call(call, "before")
        if "before" in cuts or self.faults.offline:
            return _hang_up(call, "cut before", line)
        answer = self._refused_or_done(question, call, [rule for rule in rules if isinstance(rule, Failure)])
        if self.on_call:
            self.on_call(call, "after")
        return _hang_up(call, "cut after", line) if "after" in cuts else answer

    def _refused_or_done(self, question: Question, call: Call, failures: list[Failure]) -> Answer:
        try:
            if question.model is None:
                raise NotImplementedError(f"the models know no {call.action}")
            self.faults.before(call, _signed(question), self.identities.arn(call.key))
            tokens.check_signature(self, question.environ)
            for failure in failures:
                if failure.after:
                    self.execute(question, call)
                raise failure.refusal()
        except Refused as error:
            call.outcome = error.code
            return wire.write(question, error)
        answer = self.execute(question, call)
        call.outcome = "ok" if answer.status < 400 else _code(answer)
        return answer

    def _moto(self, question: Question) -> Answer:
        """Let moto answer."""
        said: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], _: Any = None) -> None:
            said.update(status=int(status.split()[0]), headers=headers)

        body = b"".join(self._app(question.environ, start))
        unwanted = ("content-length", "server", "date")
        headers = [(name, value) for name, value in said["headers"] if name.lower() not in unwanted]
        answer = Answer(said["status"], headers, body)
        return wire.as_cbor(question, answer) if question.cbor else answer


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        """Say nothing: `FakeAmazon.calls` has it."""


def _hang_up(call: Call, outcome: str, line: socket.socket | None) -> None:
    call.outcome = outcome
    if line is not None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def _signed(question: Question) -> datetime | None:
    """Return when a request was signed; None for a presigned URL, which has a lifetime of its own."""
    date = question.environ.get("HTTP_X_AMZ_DATE")
    return datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if date else None


def _code(answer: Answer) -> str:
    for name, value in answer.headers:
        if name.lower() == "x-amzn-errortype":
            return value.split("#")[-1]
    with suppress(ValueError):
        return json.loads(answer.body)["__type"].split("#")[-1]
    text = answer.body.decode(errors="replace")
    return text.split("<Code>")[1].split("<")[0] if "<Code>" in text else str(answer.status)
