"""Requests that change something: repeated while Google Cloud is busy, their operations awaited."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.cloud.container_v1 import types

from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.steps import Phase, Steps

POLL = 10.0  # seconds
BUSY_SECONDS = 30 * 60  # an upgrade of the control plane, for one, keeps a cluster busy for so long
NEW_ACCOUNT_SECONDS = 120  # until all of Google Cloud knows a service account
LONGEST = 90 * 60  # of an operation; GKE itself gives up on nodes after 35 minutes
NOT_YET = {ErrorReason.DENIED, ErrorReason.ABSENT, ErrorReason.UNKNOWN_ACCOUNT}


Answer = TypeVar("Answer")
Begun = Mapping[str, Any] | types.Operation  # an operation, as the request returned it


class Operations:
    """Requests for one cluster that change something."""

    def __init__(self, session: GcpSession, steps: Steps) -> None:
        self.session, self.steps, self._new_until = session, steps, float("-inf")

    def account_created(self) -> None:
        """Pass over, for two minutes, that a new service account is unknown or may not do anything yet.

        https://cloud.google.com/iam/docs/access-change-propagation
        """
        self._new_until = self.steps.clock.now() + NEW_ACCOUNT_SECONDS

    def send(self, step: str, call: Callable[[], Answer], *, busy: float = BUSY_SECONDS) -> Answer:
        """Send a request, again as long as Google Cloud is at something else there."""
        end = self.steps.clock.now() + busy
        while True:
            try:
                return call()
            except GcpError as error:
                until = end if error.why is ErrorReason.BUSY else self._new_until
                if error.why not in {ErrorReason.BUSY, *NOT_YET} or self.steps.clock.now() >= until:
                    raise
                self.steps.update(step, Phase.RUNS, error.what[:200])
            self.steps.sleep(POLL)

    def create(self, step: str, call: Callable[[], Answer]) -> Answer | None:
        """Send a request that creates something; None if somebody else was faster."""
        try:
            return self.send(step, call)
        except GcpError as error:
            if error.why is ErrorReason.TAKEN:
                return None
            raise

    def change(
        self, step: str, method: str, *, watch: Callable[[], str] | None = None, **request: object
    ) -> None:
        """Send a request to the container API, and wait for the end of its operation."""
        operation = self.send(step, lambda: self.session.find("container", method, **request))
        self.wait_operation(step, "container", operation, watch=watch)

    def wait_operation(
        self, step: str, service: str, operation: Begun | None, *, watch: Callable[[], str] | None = None
    ) -> None:
        """Wait for the end of an operation; ``watch`` tells what holds it up, or raises."""
        if not operation or service not in ("container", "compute", "artifactregistry", "file"):
            return
        name = operation.name if isinstance(operation, types.Operation) else operation["name"]
        end = self.steps.clock.now() + LONGEST
        while True:
            state, failure = self._look(service, name, operation)
            if state == "done":
                if failure:
                    raise to_error(ErrorReply(400, "", failure), f"operation {name}", self.session.project)
                return
            if self.steps.clock.now() >= end:
                raise ProviderFailed(
                    f"it has not ended in {LONGEST // 60} minutes; its last state is {state}",
                    about=f"operation {name}",
                    fix="call it again to continue; https://status.cloud.google.com",
                )
            words = watch() if watch else ""
            self.steps.update(step, Phase.RUNS, f"{state}; {words}" if words else state)
            self.steps.sleep(POLL)

    def running(self, target: str) -> types.Operation | None:
        """Find an operation that somebody else began on ``clusters/lab/nodePools/training``."""
        listed = self.session.container("list_operations", parent=self.session.place).operations
        going = [operation for operation in listed if operation.status != types.Operation.Status.DONE]
        return next((operation for operation in going if operation.target_link.endswith(f"/{target}")), None)

    def _look(self, service: str, name: str, operation: Begun) -> tuple[str, str]:
        """Get an operation's state and its error, in words; one that is forgotten is done."""
        session = self.session
        if isinstance(operation, types.Operation):
            path = f"{session.place}/operations/{name}"
            now = session.find("container", "get_operation", name=path)
            return (now.status.name.lower(), failure_of(now)) if now is not None else ("done", "")
        if service == "compute":
            place = {
                key: operation[key].rpartition("/")[2] for key in ("zone", "region") if operation.get(key)
            }
            method = f"{next(iter(place), 'global')}Operations.get"
            now = session.find("compute", method, project=session.project, operation=name, **place)
        else:
            now = session.find(service, "projects.locations.operations.get", name=name)
        now = now or {"done": True}
        error = now.get("error") or {}
        first = error["errors"][0] if error.get("errors") else error
        words = f"{first.get('code', '')}: {first.get('message', '')}" if first else ""
        return "done" if now.get("done") else str(now.get("status", "running")).lower(), words


def failure_of(resource: types.Operation | types.Cluster | types.NodePool) -> str:
    """The error of an operation, or what is wrong with a cluster or node pool; empty if nothing is."""
    if isinstance(resource, types.Operation):
        conditions = [*resource.nodepool_conditions, *resource.cluster_conditions]
        messages = [
            resource.error.message,
            *(f"{condition.code.name}: {condition.message}" for condition in conditions),
        ]
        failed = resource.error.code or conditions
    else:
        messages = [condition.message for condition in resource.conditions] or [resource.status_message]
        failed = True
    return ("; ".join(dict.fromkeys(filter(None, messages))) or "it gave no reason") if failed else ""
