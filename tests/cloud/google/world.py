"""What all services of the fake cloud share: the clock, the calls, the faults that tests want, the projects.

Each request, over gRPC or HTTP, goes through `World.serve`. What a service does is in the modules beside
this.
"""

import fnmatch
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from .api_errors import ApiError, LineCut, OperationFailure, permission_denied, service_disabled
from .clock import SimulatedClock

# Simulated seconds that it takes, as a rule, by the kind of operation.
DELAYS = {
    "CREATE_CLUSTER": 300.0,
    "DELETE_CLUSTER": 240.0,
    "CREATE_NODE_POOL": 120.0,
    "DELETE_NODE_POOL": 150.0,
    "SET_NODE_POOL_SIZE": 90.0,
    "UPGRADE_MASTER": 400.0,
    "container": 60.0,  # every other operation of the container API
    "file.create": 200.0,
    "file": 60.0,
    "compute": 10.0,
    "artifactregistry": 3.0,
    "cloudbuild": 120.0,
    "serviceusage": 20.0,
    "abort": 10.0,
    "start": 2.0,  # how long an operation is PENDING
}


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        number: Counted from 1, over all services.
        method: ``container.CreateCluster``, ``compute.zones.list``.
        target: The resource it speaks of.
        at: When, in simulated time.
        by: Who: ``user``, or the service account of a schedule.
    """

    number: int
    method: str
    target: str
    at: datetime
    by: str


@dataclass
class _Fault:
    method: str
    left: int  # how many calls pass until it strikes
    times: float
    error: ApiError | OperationFailure


@dataclass
class _Cut:
    left: int
    after: bool
    calls: float


@dataclass
class Project:
    """A project: which APIs it has enabled, who pays, what it may."""

    id: str
    number: int
    enabled: set[str] = field(default_factory=set)
    billing: bool = True
    denied: set[str] = field(default_factory=set)  # permissions that the caller does not have
    quotas: dict[tuple[str | None, str], float] = field(
        default_factory=dict
    )  # by region (None: global), metric


class World:
    """The state that services share, and the gate through which every request goes."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.lock = clock.lock
        self.calls: list[Call] = []
        self.delays = dict(DELAYS)
        self.projects: dict[str, Project] = {}
        self.endpoint = "203.0.113.10"
        self.ca = ""
        self.registry = self.login = ""  # of a real registry that stands for Artifact Registry
        self._faults: list[_Fault] = []
        self._cut: _Cut | None = None
        self._numbers = itertools.count(1)
        # Whether a service account has a permission on a target of a project; `iam` knows
        self.may: Callable[[str, str, str, str], bool] = lambda *_: False

    def serve(
        self, method: str, target: str, act: Callable[[], object], *, title: str = "", by: str = "user"
    ):
        """Note a request, let a fault strike, see whether it is allowed, and let it act.

        Raises:
            ApiError: The answer is no.
            LineCut: There is no answer.
        """
        with self.lock:
            self.clock.settle()
            call = Call(next(self._numbers), method, target, self.clock.now, by)
            self.calls.append(call)
            cut = self._strikes()
            if cut and not cut.after:
                raise LineCut
            if error := self._fault(method, ApiError):
                raise error
            self._allow(method, target, title, by)
            answer = act()
            if cut:
                raise LineCut
            return answer

    def fail(self, method: str, nth: int, error: ApiError | OperationFailure, *, times: float = 1) -> None:
        """Let the nth call of this method from now on fail; ``*`` in the method stands for anything."""
        with self.lock:
            self._faults.append(_Fault(method, nth - 1, times, error))

    def cut(self, nth: int, when: str, *, calls: float = math.inf) -> None:
        """Cut the line at the nth call from now on, ``before`` or ``after`` it took effect."""
        with self.lock:
            self._cut = _Cut(nth - 1, when == "after", calls)

    def clear_faults(self) -> None:
        """Let calls through again, and forget the faults that did not strike."""
        with self.lock:
            self._cut = None
            self._faults.clear()

    def operation_failure(self, method: str) -> OperationFailure | None:
        """Return how the operation ends that this call begins, if a test wants it to fail."""
        return self._fault(method, OperationFailure)

    def project(self, name: str) -> Project:
        """Return a project by its id or number.

        Raises:
            ApiError: There is none, which the APIs do not tell from one that is not yours.
        """
        for each in self.projects.values():
            if name in (each.id, str(each.number)):
                return each
        raise ApiError(
            "PERMISSION_DENIED",
            f"Permission denied on resource project {name}.",
            reason="CONSUMER_INVALID",
            metadata={"consumer": f"projects/{name}"},
            help=("Google developers console", "https://console.developers.google.com"),
        )

    def _fault(self, method: str, kind: type) -> ApiError | OperationFailure | None:
        for fault in list(self._faults):
            if not isinstance(fault.error, kind) or not fnmatch.fnmatchcase(method, fault.method):
                continue
            if fault.left:
                fault.left -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            return fault.error
        return None

    def _strikes(self) -> _Cut | None:
        cut = self._cut
        if cut is None:
            return None
        if cut.left:
            cut.left -= 1
            return None
        cut.calls -= 1
        if cut.calls <= 0:
            self._cut = None
        struck = _Cut(0, cut.after, 1)
        cut.after = False  # once it is cut, nothing reaches the cloud
        return struck

    def _allow(self, method: str, target: str, title: str, by: str) -> None:
        words = target.partition(":")[0].split("/")
        if "projects" not in words[:-1] or (name := words[words.index("projects") + 1]) == "-":
            return
        project = self.project(name)
        service = method.partition(".")[0]
        if service not in project.enabled and service != "serviceusage":
            raise service_disabled(service, title, project.id)
        permission = permission_of(method)
        denied = (
            permission in project.denied if by == "user" else not self.may(by, permission, target, project.id)
        )
        if denied:
            raise permission_denied(permission, f"projects/{project.id}")


_VERBS = {
    "Create": "create",
    "Delete": "delete",
    "Get": "get",
    "List": "list",
    "Set": "update",
    "Update": "update",
}


def permission_of(method: str) -> str:
    """Return the IAM permission that a method asks for.

    Example:
        >>> permission_of("container.CreateNodePool"), permission_of("file.projects.locations.instances.get")
        ('container.clusters.update', 'file.instances.get')
    """
    service, *words = method.split(".")
    if service != "container":
        return ".".join(
            (service, *(word for word in words if word not in ("projects", "locations")[: len(words) - 2]))
        )
    rpc = words[-1]
    # https://cloud.google.com/kubernetes-engine/docs/reference/api-permissions: node pools are their
    # cluster's
    verb = next((verb for prefix, verb in _VERBS.items() if rpc.startswith(prefix)), "update")
    if "Operation" in rpc:
        return f"container.operations.{verb}"
    if "NodePool" in rpc and verb in ("create", "delete"):
        return "container.clusters.update"
    if "NodePool" in rpc and verb == "list":
        return "container.clusters.get"
    return f"container.clusters.{verb}"
