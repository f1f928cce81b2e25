"""One stack of CloudFormation: resources created, changed and deleted in order, in time, and with reasons.

As AWS has it: independent resources go on when one fails; with rollback disabled what succeeded stays, and an
update goes on; what failed is deleted first. A stack does all of it with the rights of its role.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ParamValidationError

from . import resources, templates, users
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

    def __init__(self, service: "CloudFormation", identity: str, name: str, region: str, desired: Wanted):
        self.service, self.clock = service, service.aws.clock
        self.id, self.name, self.region, self.wanted = identity, name, region, desired
        self.created, self.ended = self.clock.date(), None
        self.status = self.reason = self.token = self.verb = ""
        self.kept = self.by_administrator = False
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
            items = self.resources
            self.todo = {name: {key for key, item in items.items() if name in item.needs} for name in items}
        else:
            self.todo = templates.dependencies(self.scope())
        self._after(5, self._go)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        run = self.run
        self.clock.after(seconds, lambda: act() if self.run == run else None)

    def _later(self, resource: Resource, seconds: float, act: Callable[[], None]) -> None:
        self._after(seconds, lambda: self._try(resource.name, act))

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
        resource = self.resources.setdefault(name, Resource(name, kind))
        resource.needs = templates.dependencies(scope)[name]
        if resource.status == "CREATE_FAILED" and resource.physical:
            # It has no last known stable state, so it is deleted before it is created again.
            self._handler().delete(resource.kind, resource.physical, resource.properties)
            self._when_gone(resource, POLL, lambda: self._make_again(resource))
            return
        properties, tags = scope.resolve(spec.get("Properties") or {}), self.tags(kind)
        before = resource.properties if resource.physical else None
        if before == properties and resource.tags == tags:
            self._done(resource, resource.status)
            return
        handler = self._handler(kind, "create" if before is None else "update")
        if before is None:
            self._mark(resource, "CREATE_IN_PROGRESS")
            token = f"{self.token[-20:]}-{name}"
            handler.create(resource, properties, tags, token)
            self._mark(resource, "CREATE_IN_PROGRESS", "Resource creation Initiated")
        else:
            self._mark(resource, "UPDATE_IN_PROGRESS")
            if resources.replaced(kind, before, properties):
                words = (
                    "CloudFormation cannot update a stack when a custom-named resource requires replacing."
                )
                raise invalid(f"{words} Rename {resource.physical} and update the stack again.")
            if tags != resource.tags:
                handler.tag(kind, resource.physical, resource.attributes, tags)
            if before != properties:
                handler.update(kind, before, properties)
        resource.properties, resource.tags = properties, tags
        done = "CREATE_COMPLETE" if before is None else "UPDATE_COMPLETE"
        if kind in POLLED:
            self._later(resource, POLL, lambda: self._poll(resource, done))
        else:
            self._later(resource, SECONDS.get(kind, 3), lambda: self._done(resource, done))

    def _when_gone(self, resource: Resource, seconds: float, act: Callable[[], None]) -> None:
        def look() -> None:
            if resource.kind in POLLED and self._handler().status(resource.kind, resource)[0]:
                self._later(resource, POLL, look)
            else:
                act()

        self._later(resource, seconds, look)

    def _make_again(self, resource: Resource) -> None:
        resource.physical, resource.status = "", ""
        self._make_one(resource.name)

    def _poll(self, resource: Resource, done: str) -> None:
        state, issues = self._handler().status(resource.kind, resource)
        if state in ("CREATING", "UPDATING"):
            self._later(resource, POLL, lambda: self._poll(resource, done))
        elif state == "ACTIVE":
            if resource.kind == "EKS::Cluster":
                resource.attributes |= self._handler().cluster(resource.physical)
            self._done(resource, done)
        else:
            messages = [
                f"Issue(Code={issue['code']}, Message={issue['message']}, ResourceIds=[])" for issue in issues
            ]
            words = f"[{', '.join(messages)}] (Service: null, Status Code: 0, Request ID: null)"
            self._fail(resource.name, handled(words, "GeneralServiceException"))

    def _delete_one(self, name: str, waited: float = 0) -> None:
        resource = self.resources[name]
        if not resource.physical:
            self._done(resource, "DELETE_COMPLETE")
            return
        if not waited:
            self._mark(resource, "DELETE_IN_PROGRESS")
        try:
            self._handler(resource.kind, "delete").delete(
                resource.kind, resource.physical, resource.properties
            )
        except ClientError as error:
            code, words = (error.response["Error"][key] for key in ("Code", "Message"))
            if code not in NOT_YET or "attached" in words or waited >= PATIENCE:
                raise
            self._later(resource, 30, lambda: self._delete_one(name, waited + 30))
            return

        seconds = SECONDS_GONE.get(resource.kind, 3)
        self._when_gone(resource, seconds, lambda: self._done(resource, "DELETE_COMPLETE"))

    def _done(self, resource: Resource, status: str) -> None:
        if status != resource.status:
            self._mark(resource, status)
        self.busy.discard(resource.name)
        if self.verb == "DELETE":
            del self.resources[resource.name]
        self._after(0.1, self._go)

    def _fail(self, name: str, words: str) -> None:
        resource = self.resources[name]
        verb = "CREATE" if resource.status in ("", "CREATE_IN_PROGRESS") else self.verb
        self._mark(resource, f"{verb}_FAILED", words)
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

    def changes(self, desired: Wanted) -> list[tuple[str, str, str]]:
        """Return what an update does: (action, name, type)."""
        scope, rows = self.scope(desired), []
        for name, resource in scope.resources().items():
            items, kind = self.resources.get(name), resource["Type"].removeprefix("AWS::")
            if items is None or not items.status.endswith("_COMPLETE"):
                rows.append(("Add", name, kind))
            elif items.properties != scope.resolve(
                resource.get("Properties") or {}
            ) or items.tags != self.tags(kind, desired):
                rows.append(("Modify", name, kind))
        return rows

    def tags(self, kind: str, desired: Wanted | None = None) -> dict[str, str]:
        """Return the stack's tags for a resource, if it can have any."""
        taggable = resources.schema(kind).get("tagging", {}).get("taggable")
        return dict((desired or self.wanted).tags) if taggable else {}

    def scope(self, desired: Wanted | None = None) -> Scope:
        """Return what functions in the template are resolved with."""
        desired = desired or self.wanted

        def ref(name: str) -> str:
            return self.resources[name].physical if name in self.resources else f"<{name}>"

        def attribute(name: str, of: str) -> Any:
            resource = self.resources.get(name)
            return resource.attributes[of] if resource and resource.physical else f"<{name}.{of}>"

        def exported(name: str) -> str:
            self.imports.add(name)
            return self.service.exported(self.region, name)

        pseudo = templates.pseudo(self.region, self.name, self.id)
        return Scope(desired.template, desired.values, pseudo, ref, attribute, exported)

    def _handler(self, kind: str = "", verb: str = "") -> Resources:
        """Act with the rights of the stack's role, which have to be all that the type's handler lists."""
        listed = (
            [] if not kind else [*resources.permissions(kind, "read"), *resources.permissions(kind, verb)]
        )
        if self.wanted.role:
            may(self.wanted.role, *listed)
        elif not self.by_administrator:
            users.check(*listed)
        return Resources(lambda service: self.service.aws.inside(service, self.region, self.wanted.role))

    def set(self, status: str, words: str = "") -> None:
        """Change the status."""
        self.status, self.reason = status, "" if words == "User Initiated" else words
        self._event(self.name, self.id, "AWS::CloudFormation::Stack", status, words)

    def _mark(self, resource: Resource, status: str, words: str = "") -> None:
        resource.status, resource.reason, resource.updated = status, words, self.clock.date()
        self._event(resource.name, resource.physical, f"AWS::{resource.kind}", status, words)

    def _event(self, name: str, physical: str, kind: str, status: str, words: str) -> None:
        about = {"StackId": self.id, "StackName": self.name, "EventId": str(uuid.uuid4())}
        about |= {"ResourceStatusReason": words} if words else {}
        about |= {"LogicalResourceId": name, "PhysicalResourceId": physical, "ResourceType": kind}
        about |= {"ResourceStatus": status, "ClientRequestToken": self.token, "Timestamp": self.clock.date()}
        self.events.append(about)


def _words(error: Exception) -> str:
    if not isinstance(error, ClientError):
        return str(getattr(error, "message", error))
    details, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    words = f"{details['Message']} (Service: {error.operation_name}, Status Code: {status})"
    codes = (code for part, code in HANDLER.items() if part in details["Code"])
    return handled(words, next(codes, "GeneralServiceException"))


def handled(words: str, code: str) -> str:
    """Return the reason that a resource's handler gives."""
    token = uuid.uuid4()
    return f'Resource handler returned message: "{words}" (RequestToken: {token}, HandlerErrorCode: {code})'
