"""Operations of the container API: they take their time, one a cluster, and may fail or be cancelled.

PENDING, RUNNING, DONE, or ABORTING between the latter two
(https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.operations).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from google.cloud.container_v1 import types
from google.rpc import code_pb2, status_pb2

from .api_errors import ApiError, OperationFailure
from .world import Project, World

Kind = types.Operation.Type
Status = types.Operation.Status
_DOING = {
    Kind.CREATE_CLUSTER: "creating",
    Kind.DELETE_CLUSTER: "deleting",
    Kind.AUTO_REPAIR_NODES: "repairing",
    Kind.REPAIR_CLUSTER: "repairing",
}


@dataclass
class Running:
    """An operation, with what its end brings about.

    Attributes:
        shown: As the API shows it.
        cluster: The key of its cluster.
        done: Called at a good end.
        failed: Called at a bad one.
        failure: How it ends, if a test wants it to fail.
    """

    shown: types.Operation
    cluster: tuple[str, str, str]
    done: Callable[[], None]
    failed: Callable[[OperationFailure], None]
    failure: OperationFailure | None = None


class Operations:
    """The operations of all clusters, past ones too."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._every: dict[tuple[str, str, str], Running] = {}
        self._numbers = itertools.count(1)

    def refuse_second(self, cluster: tuple[str, str, str]) -> None:
        """Refuse what would be a second operation on a cluster that has one going on.

        Raises:
            ApiError: It has.
        """
        for each in self._every.values():
            if each.cluster == cluster and each.shown.status != Status.DONE:
                raise ApiError(
                    "FAILED_PRECONDITION",
                    f"Operation {each.shown.name} is currently "
                    f"{_DOING.get(each.shown.operation_type, 'upgrading')} cluster {cluster[2]}. "
                    "Please wait and try again once it is done.",
                    reason="CLUSTER_ALREADY_HAS_OPERATION",
                )

    def begin(
        self,
        kind: Kind,
        *,
        project: Project,
        cluster: tuple[str, str, str],
        target: str,
        failure: OperationFailure | None = None,
        done: Callable[[], None] = lambda: None,
        failed: Callable[[OperationFailure], None] = lambda failure: None,
    ) -> types.Operation:
        """Begin an operation on a cluster and return it as the API shows it now."""
        world, (_, location, _) = self._world, cluster
        name = f"operation-{int(world.clock.now.timestamp() * 1000)}-{next(self._numbers):08x}"
        places = "zones" if location.count("-") == 2 else "locations"
        root = f"https://container.googleapis.com/v1/projects/{project.number}/{places}/{location}"
        shown = types.Operation(
            name=name,
            zone=location,
            location=location,
            operation_type=kind,
            status=Status.PENDING,
            self_link=f"{root}/operations/{name}",
            target_link=f"{root}/{target}",
            start_time=timestamp(world.clock.now),
        )
        running = self._every[(project.id, location, name)] = Running(shown, cluster, done, failed, failure)
        delay = world.delays.get(kind.name, world.delays["container"])
        start = min(world.delays["start"], delay)
        world.clock.after(start, lambda: self._start(running))
        world.clock.after(delay, lambda: self._end(running))
        return types.Operation(shown)

    def get(self, project: str, location: str, name: str) -> types.Operation:
        """Return one.

        Raises:
            ApiError: There is none of this name.
        """
        return types.Operation(self._find(project, location, name).shown)

    def list(self, project: str, location: str) -> list[types.Operation]:
        """Return those of a location, or with ``-`` of all."""
        return [
            types.Operation(each.shown)
            for (of, where, _), each in self._every.items()
            if of == project and location in ("-", where)
        ]

    def cancel(self, project: str, location: str, name: str) -> None:
        """Abort one: it is ABORTING for a while, and ends with CANCELLED.

        Raises:
            ApiError: There is none, or it has ended.
        """
        running = self._find(project, location, name)
        if running.shown.status == Status.DONE:
            raise ApiError("FAILED_PRECONDITION", f"Operation {name} is already done.")
        running.shown.status = Status.ABORTING
        running.failure = OperationFailure("CANCELLED", "Operation was cancelled.")
        self._world.clock.after(self._world.delays["abort"], lambda: self._end(running))

    def _find(self, project: str, location: str, name: str) -> Running:
        found = self._every.get((project, location, name))
        if found is None:
            raise not_found(f"projects/{project}/locations/{location}/operations/{name}")
        return found

    def _start(self, running: Running) -> None:
        if running.shown.status == Status.PENDING:
            running.shown.status = Status.RUNNING

    def _end(self, running: Running) -> None:
        shown, failure = running.shown, running.failure
        if shown.status == Status.DONE:
            return
        if shown.status == Status.ABORTING and failure and failure.code != "CANCELLED":
            return
        shown.status = Status.DONE
        shown.end_time = timestamp(self._world.clock.now)
        if failure is None:
            running.done()
            return
        code = code_pb2.Code.Value(failure.code)
        shown.error = status_pb2.Status(code=code, message=failure.message)
        shown.status_message = shown.detail = failure.message
        shown.cluster_conditions = [conditions(failure)]
        if "nodePools" in shown.target_link:
            shown.nodepool_conditions = [conditions(failure)]
        running.failed(failure)


def conditions(failure: OperationFailure) -> types.StatusCondition:
    """Return a failure as a condition of a cluster or node pool."""
    return types.StatusCondition(
        code=types.StatusCondition.Code[failure.condition],
        canonical_code=code_pb2.Code.Value(failure.code),
        message=failure.message,
    )


def not_found(name: str) -> ApiError:
    """Return what the container API says of what is not there."""
    return ApiError("NOT_FOUND", f"Not found: {name}.", reason="RESOURCE_NOT_FOUND")


def timestamp(when: datetime) -> str:
    """Return a moment as RFC 3339, in UTC."""
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")
