"""One stack of CloudFormation: resources created, changed and deleted in order, in time, and with reasons.

As AWS has it: independent resources go on when one fails; with rollback disabled what succeeded stays, and an
update goes on; what failed is deleted first. A stack does all of it with the rights of its role.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ParamValidationError

from . import resources, templates
from .faults import Refused
from .resources import POLLED, SECONDS, SECONDS_GONE, Resources
from .schedules import may
from .templates import Scope, invalid

if TYPE_CHECKING:
    from .cloudformation import CloudFormation

PATIENCE, POLL = 600.0, 15.0  # seconds for which what others still use is tried to be deleted; between looks
NOT_YET = ("ResourceInUseException", "DependencyViolation")
HANDLER = {"LimitExceeded": "ServiceLimitExceeded", "Denied": "AccessDenied", "Unauthorized": "AccessDenied"}
IN_PROGRESS = "_IN_PROGRESS"


@dataclass
class Resource:
    """A resource of a stack; `needs` are the resources that it was created after."""

    name: str
    kind: str
    status: str = ""
    reason: str = ""
    physical: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    needs: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    updated: Any = None


@dataclass
class Wanted:
    """What a stack is to be: what a request gives."""

    text: str = ""
    template: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    role: str = ""


class Stack:
    """A stack, and the operation that it is in: what is to be done, what is under way, what failed.

    Attributes:
        kept: With rollback disabled.
        run: The number of the operation; what a former one planned is not done any more.
    """

    def __init__(self, service: "CloudFormation", identity: str, name: str, region: str, wanted: Wanted):
        self.service, self.clock = service, service.aws.clock
        self.id, self.name, self.region, self.wanted = identity, name, region, wanted
        self.created, self.ended = self.clock.date(), None
        self.status = self.reason = self.token = self.verb = ""
        self.kept = False
        self.on_failure = "ROLLBACK"
        self.resources: dict[str, Resource] = {}
        self.events: list[dict[str, Any]] = []
        self.outputs: list[dict[str, str]] = []
        self.imports: set[str] = set()
        self.tokens: dict[str, str] = {}
        self.todo: dict[str, set[str]] = {}
        self.busy: set[str] = set()
        self.failed: list[str] = []
        self.run = 0

    def begin(self, verb: str, token: str) -> None:
        """Begin to ``CREATE``, ``UPDATE`` or ``DELETE``."""
        self.run, self.verb = self.run + 1, verb
        self.token, self.failed, self.busy = token or f"Console-{uuid.uuid4()}", [], set()
        self.tokens[self.token] = verb
        self.set(verb + IN_PROGRESS, "User Initiated")
        if verb == "DELETE":
            there = self.resources
            self.todo = {name: {key for key, item in there.items() if name in item.needs} for name in there}
        else:
            self.todo = templates.order(self.scope())
        self._after(5, self._go)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        run = self.run
        self.clock.after(seconds, lambda: act() if self.run == run else None)

    def _later(self, found: Resource, seconds: float, act: Callable[[], None]) -> None:
        self._after(seconds, lambda: self._try(found.name, act))

    def _go(self) -> None:
        """Begin what nothing is waited for any more; end the operation when nothing is under way."""
        step = self._delete_one if self.verb == "DELETE" else self._make_one
        while ready := [key for key, after in self.todo.items() if not after & self._waiting()]:
            del self.todo[ready[0]]
            self.busy.add(ready[0])
            self._try(ready[0], lambda name=ready[0]: step(name))
        if not self.busy:
            self.run += 1
            self._end()

    def _waiting(self) -> set[str]:
        return set(self.todo) | self.busy | set(self.failed)

    def _try(self, name: str, act: Callable[[], None]) -> None:
        """Do a step of a resource; what goes wrong in it is the resource's failure."""
        try:
            act()
        except (ClientError, Refused, ParamValidationError) as error:
            self._fail(name, _words(error))

    def _make_one(self, name: str) -> None:
        spec, scope = self.wanted.template["Resources"][name], self.scope()
        kind = spec["Type"].removeprefix("AWS::")
        found = self.resources.setdefault(name, Resource(name, kind))
        found.needs = templates.order(scope)[name]
        if found.status == "CREATE_FAILED" and found.physical:
            # It has no last known stable state, so it is deleted before it is created again.
            self._handler().delete(found.kind, found.physical, found.properties)
            self._when_gone(found, POLL, lambda: self._make_again(found))
            return
        properties, tags = scope.resolve(spec.get("Properties") or {}), self.tags(kind)
        before = found.properties if found.physical else None
        if before == properties and found.tags == tags:
            self._done(found, found.status)
            return
        handler = self._handler(kind, "create" if before is None else "update")
        if before is None:
            self._mark(found, "CREATE_IN_PROGRESS")
            token = f"{self.token[-20:]}-{name}"
            handler.create(found, properties, tags, token)
            self._mark(found, "CREATE_IN_PROGRESS", "Resource creation Initiated")
        else:
            self._mark(found, "UPDATE_IN_PROGRESS")
            if resources.replaced(kind, before, properties):
                words = (
                    "CloudFormation cannot update a stack when a custom-named resource requires replacing."
                )
                raise invalid(f"{words} Rename {found.physical} and update the stack again.")
            if tags != found.tags:
                handler.tag(kind, found.physical, found.attributes, tags)
            if before != properties:
                handler.update(kind, before, properties)
        found.properties, found.tags = properties, tags
        done = "CREATE_COMPLETE" if before is None else "UPDATE_COMPLETE"
        if kind in POLLED:
            self._later(found, POLL, lambda: self._poll(found, done))
        else:
            self._later(found, SECONDS.get(kind, 3), lambda: self._done(found, done))

    def _when_gone(self, found: Resource, seconds: float, act: Callable[[], None]) -> None:
        def look() -> None:
            if found.kind in POLLED and self._handler().status(found.kind, found)[0]:
                self._later(found, POLL, look)
            else:
                act()

        self._later(found, seconds, look)

    def _make_again(self, found: Resource) -> None:
        found.physical, found.status = "", ""
        self._make_one(found.name)

    def _poll(self, found: Resource, done: str) -> None:
        state, issues = self._handler().status(found.kind, found)
        if state in ("CREATING", "UPDATING"):
            self._later(found, POLL, lambda: self._poll(found, done))
        elif state == "ACTIVE":
            if found.kind == "EKS::Cluster":
                found.attributes |= self._handler().cluster(found.physical)
            self._done(found, done)
        else:
            told = [
                f"Issue(Code={issue['code']}, Message={issue['message']}, ResourceIds=[])" for issue in issues
            ]
            words = f"[{', '.join(told)}] (Service: null, Status Code: 0, Request ID: null)"
            self._fail(found.name, handled(words, "GeneralServiceException"))

    def _delete_one(self, name: str, waited: float = 0) -> None:
        found = self.resources[name]
        if not found.physical:
            self._done(found, "DELETE_COMPLETE")
            return
        if not waited:
            self._mark(found, "DELETE_IN_PROGRESS")
        try:
            self._handler(found.kind, "delete").delete(found.kind, found.physical, found.properties)
        except ClientError as error:
            code, words = (error.response["Error"][key] for key in ("Code", "Message"))
            if code not in NOT_YET or "attached" in words or waited >= PATIENCE:
                raise
            self._later(found, 30, lambda: self._delete_one(name, waited + 30))
            return

        seconds = SECONDS_GONE.get(found.kind, 3)
        self._when_gone(found, seconds, lambda: self._done(found, "DELETE_COMPLETE"))

    def _done(self, found: Resource, status: str) -> None:
        if status != found.status:
            self._mark(found, status)
        self.busy.discard(found.name)
        if self.verb == "DELETE":
            del self.resources[found.name]
        self._after(0.1, self._go)

    def _fail(self, name: str, words: str) -> None:
        found = self.resources[name]
        verb = "CREATE" if found.status in ("", "CREATE_IN_PROGRESS") else self.verb
        self._mark(found, f"{verb}_FAILED", words)
        self.busy.discard(name)
        self.failed.append(name)
        self._after(0.1, self._go)

    def _end(self) -> None:
        if self.failed:
            words = f"The following resource(s) failed to {self.verb.lower()}: [{', '.join(self.failed)}]. "
            if self.verb != "DELETE" and not self.kept:
                raise NotImplementedError(f"the fake rolls nothing back: {words}")
            self.set(f"{self.verb}_FAILED", words)
            return
        self.outputs = []
        if self.verb == "DELETE":
            self.ended, self.imports = self.clock.date(), set()
        else:
            scope = self.scope()
            for key, output in (self.wanted.template.get("Outputs") or {}).items():
                row = {"OutputKey": key, "OutputValue": str(scope.resolve(output["Value"]))}
                row |= {"ExportName": scope.resolve(output["Export"]["Name"])} if "Export" in output else {}
                self.outputs.append(row)
        self.set(f"{self.verb}_COMPLETE")

    def changes(self, wanted: Wanted) -> list[tuple[str, str, str]]:
        """Return what an update does: (action, name, type)."""
        scope, found = self.scope(wanted), []
        for name, resource in scope.resources().items():
            there, kind = self.resources.get(name), resource["Type"].removeprefix("AWS::")
            if there is None or not there.status.endswith("_COMPLETE"):
                found.append(("Add", name, kind))
            elif there.properties != scope.resolve(
                resource.get("Properties") or {}
            ) or there.tags != self.tags(kind, wanted):
                found.append(("Modify", name, kind))
        return found

    def tags(self, kind: str, wanted: Wanted | None = None) -> dict[str, str]:
        """Return the stack's tags for a resource, if it can have any."""
        taggable = resources.schema(kind).get("tagging", {}).get("taggable")
        return dict((wanted or self.wanted).tags) if taggable else {}

    def scope(self, wanted: Wanted | None = None) -> Scope:
        """Return what functions in the template are resolved with."""
        wanted = wanted or self.wanted

        def ref(name: str) -> str:
            return self.resources[name].physical if name in self.resources else f"<{name}>"

        def attribute(name: str, of: str) -> Any:
            found = self.resources.get(name)
            return found.attributes[of] if found and found.physical else f"<{name}.{of}>"

        def exported(name: str) -> str:
            self.imports.add(name)
            return self.service.exported(self.region, name)

        pseudo = templates.pseudo(self.region, self.name, self.id)
        return Scope(wanted.template, wanted.values, pseudo, ref, attribute, exported)

    def _handler(self, kind: str = "", verb: str = "") -> Resources:
        """Act with the rights of the stack's role, which have to be all that the type's handler lists."""
        if kind and self.wanted.role:
            may(
                self.wanted.role,
                *(permission for one in ("read", verb) for permission in resources.permissions(kind, one)),
            )
        return Resources(lambda service: self.service.aws.inside(service, self.region, self.wanted.role))

    def set(self, status: str, words: str = "") -> None:
        """Change the status."""
        self.status, self.reason = status, "" if words == "User Initiated" else words
        self._event(self.name, self.id, "AWS::CloudFormation::Stack", status, words)

    def _mark(self, found: Resource, status: str, words: str = "") -> None:
        found.status, found.reason, found.updated = status, words, self.clock.date()
        self._event(found.name, found.physical, f"AWS::{found.kind}", status, words)

    def _event(self, name: str, physical: str, kind: str, status: str, words: str) -> None:
        about = {"StackId": self.id, "StackName": self.name, "EventId": str(uuid.uuid4())}
        about |= {"ResourceStatusReason": words} if words else {}
        about |= {"LogicalResourceId": name, "PhysicalResourceId": physical, "ResourceType": kind}
        about |= {"ResourceStatus": status, "ClientRequestToken": self.token, "Timestamp": self.clock.date()}
        self.events.append(about)


def _words(error: Exception) -> str:
    if not isinstance(error, ClientError):
        return str(getattr(error, "message", error))
    said, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    words = f"{said['Message']} (Service: {error.operation_name}, Status Code: {status})"
    found = (code for part, code in HANDLER.items() if part in said["Code"])
    return handled(words, next(found, "GeneralServiceException"))


def handled(words: str, code: str) -> str:
    """Return the reason that a resource's handler gives."""
    token = uuid.uuid4()
    return f'Resource handler returned message: "{words}" (RequestToken: {token}, HandlerErrorCode: {code})'
