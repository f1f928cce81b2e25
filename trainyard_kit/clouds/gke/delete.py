"""Deleting what exists of a cluster at Google Cloud, in the reverse of the order in which it was created."""

from collections.abc import Callable

from kitlib.errors import KitError, ProviderFailed
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import GcpError
from trainyard_kit.clouds.gke.iam import find_roles, project_part, set_roles
from trainyard_kit.clouds.gke.operations import BUSY_SECONDS, Operations
from trainyard_kit.clouds.gke.parts import ENDS, Part, account, find_parts
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.steps import Phase, Steps

STAGES = (  # each is begun when the one before has ended; the last words of collections, in small letters
    ("clusters",),
    ("forwardingrules", "networkendpointgroups", "instances", "disks", "buckets", "repositories"),
    ("targetpools", "addresses"),
    ("firewalls", "routers"),
    ("subnetworks",),
    ("networks",),
)


def delete(session: GcpSession, cluster: str, steps: Steps) -> None:
    """Delete all of a cluster; an error does not keep independent resources.

    The schedules and what they need go last, and only if all else is gone: until then they end the rest.
    """
    operations = Operations(session, steps)
    errors: list[KitError] = []
    parts_left = find_parts(session, cluster)
    for stage in STAGES:
        _delete_all(operations, [part for part in parts_left if _word(part) in stage], errors)
        if stage == STAGES[0]:
            parts_left = find_parts(session, cluster)  # with what the cluster has deleted itself, or left
    if not errors:
        for role in find_roles(session, cluster):
            member = f"serviceAccount:{account(session, role, cluster)}"
            set_roles(operations, f"rights {role}", project_part(session), member, [])
        accounts = [part for part in parts_left if part.service == "iam"]
        last = [part for part in accounts if part.name == "account expiry"]  # by it the rest is found
        jobs = [part for part in parts_left if part.name in ENDS]
        for chosen in (jobs, [part for part in accounts if part not in last], last):
            _delete_all(operations, chosen if not errors else [], errors)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        what, detail = "; ".join(error.what for error in errors), "\n".join(map(str, errors))
        about, fix = f'cluster "{cluster}"', errors[0].fix
        raise ProviderFailed(what, about=about, fix=fix, detail=detail) from errors[0]


def _delete_all(operations: Operations, parts: list[Part], errors: list[KitError]) -> None:
    """Begin to delete all, then wait until all are gone."""
    session, operations_of = operations.session, {}

    def begin(part: Part) -> None:
        operations.steps.update(part.name, Phase.RUNS)
        operations_of[part.name] = operations.send(part.name, lambda: part.delete(session))

    def wait(part: Part) -> None:
        if part.name not in operations_of:
            return
        try:
            operations.wait_operation(part.name, part.service, operations_of[part.name])
        except GcpError as error:  # a network is still used by what is being deleted, for one
            if error.why is not ErrorReason.BUSY:
                raise
            again = lambda: operations.wait_operation(part.name, part.service, part.delete(session))  # noqa: E731
            operations.send(part.name, again, busy=BUSY_SECONDS / 3)
        operations.steps.update(part.name, Phase.DONE)

    steps: tuple[Callable[[Part], None], ...] = (begin, wait)
    for step in steps:
        for part in parts:
            try:
                step(part)
            except KitError as error:
                errors.append(error)
                operations.steps.update(part.name, Phase.FAILED, error.what)


def _word(part: Part) -> str:
    return part.collection.lower()
