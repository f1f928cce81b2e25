"""Requests that change something: repeated while Google Cloud is busy, their operations awaited."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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
Operation = Mapping[str, Any]  # as the request that began it returned it


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
        self, step: str, verb: str, path: str, body: object = None, *, watch: Callable[[], str] | None = None
    ) -> None:
        """Send a request about a cluster or one of its pools, and wait for the end of its operation."""
        operation = self.send(step, lambda: self.session.find("container", path, verb, body))
        self.wait_operation(step, "container", operation, watch=watch)

    def wait_operation(
        self, step: str, service: str, operation: Operation | None, *, watch: Callable[[], str] | None = None
    ) -> None:
        """Wait for the end of an operation; ``watch`` tells what holds it up, or raises."""
        if not operation or service not in ("container", "compute", "artifactregistry", "file"):
            return
        end, about = self.steps.clock.now() + LONGEST, f"operation {operation['name']}"
        while True:
            now = self._look(service, operation)
            if now.get("done") or now.get("status") == "DONE":
                if failure := failure_of(now):
                    raise to_error(ErrorReply(400, "", failure), about, self.session.project)
                return
            state = str(now.get("status", "running")).lower()
            if self.steps.clock.now() >= end:
                raise ProviderFailed(
                    f"it has not ended in {LONGEST // 60} minutes; its last state is {state}",
                    about=about,
                    fix="call it again to continue; https://status.cloud.google.com",
                )
            message = watch() if watch else ""
            self.steps.update(step, Phase.RUNS, f"{state}; {message}" if message else state)
            self.steps.sleep(POLL)

    def running(self, path: str) -> Operation | None:
        """Find an operation that somebody else began on a cluster or pool."""
        listed = self.session.request("GET", "container", f"{self.session.parent}/operations")
        target = path.partition(f"/{self.session.zone}/")[2]  # the link has the project's number
        going = [item for item in listed.get("operations", ()) if item.get("status") != "DONE"]
        return next((item for item in going if item.get("targetLink", "").endswith(target)), None)

    def _look(self, service: str, operation: Operation) -> Operation:
        """Get an operation; one that is forgotten is done."""
        name = operation["name"]
        path = name if "/" in name else f"{self.session.parent}/operations/{name}"
        if service == "compute":
            path = operation["selfLink"].partition("/v1/")[2]
        return self.session.find(service, path) or {"done": True}


def failure_of(resource: Mapping[str, Any]) -> str:
    """The errors of an operation, or what is wrong with a cluster or node pool; empty if nothing is."""
    error = resource.get("error") or {}
    kinds = ("nodepoolConditions", "clusterConditions", "conditions")
    errors = [*(error.get("errors") or [error]), *(item for kind in kinds for item in resource.get(kind, ()))]
    words = (f"{item.get('code', '')}: {item.get('message', '')}" for item in errors if item)
    return "; ".join(dict.fromkeys(words))
