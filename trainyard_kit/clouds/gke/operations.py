"""Requests that change resources: retried while Google Cloud is busy, and their operations awaited."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kitlib.errors import ProviderFailed
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import ErrorReply, GcpError, to_error
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.steps import Phase, Steps

POLL_SECONDS = 10.0
BUSY_SECONDS = 30 * 60  # as long as an upgrade of the control plane takes
NEW_ACCOUNT_SECONDS = 120  # for a new service account to propagate
TIMEOUT_SECONDS = 90 * 60  # of an operation; GKE itself gives up on nodes after 35 minutes
NOT_YET = {ErrorReason.DENIED, ErrorReason.ABSENT, ErrorReason.UNKNOWN_ACCOUNT}
Answer = TypeVar("Answer")
Operation = Mapping[str, Any]  # as returned by the request that started it


class Operations:
    """Changing requests for one cluster."""

    def __init__(self, session: GcpSession, steps: Steps) -> None:
        self.session, self.steps, self._new_until = session, steps, float("-inf")

    def account_created(self) -> None:
        """Retry for two minutes errors about a new service account that is unknown or lacks permissions.

        https://cloud.google.com/iam/docs/access-change-propagation
        """
        self._new_until = self.steps.clock.now() + NEW_ACCOUNT_SECONDS

    def send(self, step: str, call: Callable[[], Answer], *, busy: float = BUSY_SECONDS) -> Answer:
        """Send a request, again while another operation is in progress, for up to ``busy`` seconds."""
        busy_deadline = self.steps.clock.now() + busy
        while True:
            try:
                return call()
            except GcpError as error:
                deadline = busy_deadline if error.reason is ErrorReason.BUSY else self._new_until
                if error.reason not in {ErrorReason.BUSY, *NOT_YET} or self.steps.clock.now() >= deadline:
                    raise
                self.steps.update(step, Phase.RUNNING, error.what[:200])
            self.steps.sleep(POLL_SECONDS)

    def create(self, step: str, call: Callable[[], Answer]) -> Answer | None:
        """Send a request that creates a resource; None if it exists by now."""
        try:
            return self.send(step, call)
        except GcpError as error:
            if error.reason is ErrorReason.TAKEN:
                return None
            raise

    def change(
        self, step: str, verb: str, path: str, body: object = None, *, watch: Callable[[], str] | None = None
    ) -> None:
        """Send a request about a cluster or node pool, and wait for its operation."""
        operation = self.send(step, lambda: self.session.find("container", path, verb, body))
        self.wait_operation(step, "container", operation, watch=watch)

    def wait_operation(
        self, step: str, service: str, operation: Operation | None, *, watch: Callable[[], str] | None = None
    ) -> None:
        """Wait for an operation; ``watch`` returns a message about its progress, or raises."""
        if not operation or service not in ("container", "compute", "artifactregistry", "file"):
            return
        deadline, about = self.steps.clock.now() + TIMEOUT_SECONDS, f"operation {operation['name']}"
        while True:
            current = self._get(service, operation)
            if current.get("done") or current.get("status") == "DONE":
                if failure := failure_message(current):
                    raise to_error(ErrorReply(400, "", failure), about, self.session.project)
                return
            state = str(current.get("status", "running")).lower()
            if self.steps.clock.now() >= deadline:
                raise ProviderFailed(
                    f"not done after {TIMEOUT_SECONDS // 60} minutes; its last state is {state}",
                    about=about,
                    fix="call it again to continue; https://status.cloud.google.com",
                )
            message = watch() if watch else ""
            self.steps.update(step, Phase.RUNNING, f"{state}; {message}" if message else state)
            self.steps.sleep(POLL_SECONDS)

    def running(self, path: str) -> Operation | None:
        """Find a running operation on a cluster or node pool, whoever started it."""
        listed = self.session.request("GET", "container", f"{self.session.parent}/operations")
        target = path.partition(f"/{self.session.zone}/")[2]  # links contain the project's number, not its id
        running = [item for item in listed.get("operations", ()) if item.get("status") != "DONE"]
        return next((item for item in running if item.get("targetLink", "").endswith(target)), None)

    def _get(self, service: str, operation: Operation) -> Operation:
        """Get an operation; one that no longer exists is done."""
        name = operation["name"]
        path = name if "/" in name else f"{self.session.parent}/operations/{name}"
        if service == "compute":
            path = operation["selfLink"].partition("/v1/")[2]
        return self.session.find(service, path) or {"done": True}


def failure_message(resource: Mapping[str, Any]) -> str:
    """The errors of an operation, or the conditions of a cluster or node pool; empty without any."""
    error = resource.get("error") or {}
    fields = ("nodepoolConditions", "clusterConditions", "conditions")
    conditions = (condition for field in fields for condition in resource.get(field, ()))
    errors = [*(error.get("errors") or [error]), *conditions]
    messages = (f"{item.get('code', '')}: {item.get('message', '')}" for item in errors if item)
    return "; ".join(dict.fromkeys(messages))
