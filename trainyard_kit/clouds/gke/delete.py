"""Delete a GKE cluster's resources, in reverse order of their creation."""

from collections.abc import Callable

from kitlib.errors import KitError, ProviderFailed
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import GcpError
from trainyard_kit.clouds.gke.iam import find_roles, project_part, set_roles
from trainyard_kit.clouds.gke.operations import BUSY_SECONDS, Operations
from trainyard_kit.clouds.gke.parts import EXPIRY_JOBS, Part, account, find_parts
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.steps import Phase, Steps

STAGES = (  # collections, in lower case; each stage starts when the one before has ended
    ("clusters",),
    ("forwardingrules", "networkendpointgroups", "instances", "disks", "buckets", "repositories"),
    ("targetpools", "addresses"),
    ("firewalls", "routers"),
    ("subnetworks",),
    ("networks",),
)


def delete(session: GcpSession, cluster: str, steps: Steps) -> None:
    """Delete a cluster's resources; after an error continue with independent ones.

    The schedules and what they need are last, and only deleted if all else is: until then they retry.
    """
    operations = Operations(session, steps)
    errors: list[KitError] = []
    existing = find_parts(session, cluster)
    for stage in STAGES:
        _delete_all(operations, [part for part in existing if part.collection.lower() in stage], errors)
        if stage == STAGES[0]:
            existing = find_parts(session, cluster)  # without the cluster's own resources, with its orphans
    if not errors:
        for role in find_roles(session, cluster):
            member = f"serviceAccount:{account(session, role, cluster)}"
            set_roles(operations, f"roles of {role}", project_part(session), member, [])
        accounts = [part for part in existing if part.service == "iam"]
        last = [part for part in accounts if part.name == "account expiry"]  # by which the others are found
        jobs = [part for part in existing if part.name in EXPIRY_JOBS]
        for batch in (jobs, [part for part in accounts if part not in last], last):
            _delete_all(operations, batch if not errors else [], errors)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        what, detail = "; ".join(error.what for error in errors), "\n".join(map(str, errors))
        about, fix = f'cluster "{cluster}"', errors[0].fix
        raise ProviderFailed(what, about=about, fix=fix, detail=detail) from errors[0]


def _delete_all(operations: Operations, parts: list[Part], errors: list[KitError]) -> None:
    """Start deleting all, then wait until all are deleted."""
    session, started = operations.session, {}

    def start(part: Part) -> None:
        operations.steps.update(part.name, Phase.RUNNING)
        started[part.name] = operations.send(part.name, lambda: part.delete(session))

    def wait(part: Part) -> None:
        if part.name not in started:
            return
        try:
            operations.wait_operation(part.name, part.service, started[part.name])
        except GcpError as error:  # as for a network whose users are still being deleted
            if error.reason is not ErrorReason.BUSY:
                raise
            again = lambda: operations.wait_operation(part.name, part.service, part.delete(session))  # noqa: E731
            operations.send(part.name, again, busy=BUSY_SECONDS / 3)
        operations.steps.update(part.name, Phase.DONE)

    steps: tuple[Callable[[Part], None], ...] = (start, wait)
    for step in steps:
        for part in parts:
            try:
                step(part)
            except KitError as error:
                errors.append(error)
                operations.steps.update(part.name, Phase.FAILED, error.what)
