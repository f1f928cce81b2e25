"""What all services of the fake cloud share: clock, calls, faults, and the project with its rights.

Each request goes through `World.serve`.
"""

import fnmatch
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from ..simulated_clock import SimulatedClock
from .api_errors import ApiError, LineCut, OperationFailure, permission_denied, service_disabled

# Simulated seconds that operations take, by kind or service; while one is PENDING; until a new service
# account is seen; until a binding counts
DELAYS = {"CREATE_CLUSTER": 300.0, "DELETE_CLUSTER": 240.0, "CREATE_NODE_POOL": 120.0, "container": 60.0}
DELAYS |= {"compute": 10.0, "file": 60.0, "artifactregistry": 3.0}
DELAYS |= {"start": 2.0, "account": 20.0, "policy": 0.0}
_READS = ("get", "list", "test", "aggregated", "batchGet", "Get", "List")


@dataclass(frozen=True)
class Call:
    """One request: its number, from 1; the method and resource; when, and by whom."""

    number: int
    method: str
    target: str
    at: datetime
    by: str

    @property
    def changes(self) -> bool:
        """Whether the request changes something."""
        return not self.method.rpartition(".")[2].startswith(_READS)


@dataclass
class Project:
    """The project: its APIs, who pays, permissions that the user lacks, quotas by region (None: global)."""

    id: str
    number: int
    enabled: set[str] = field(default_factory=set)
    billing: bool = True
    denied: set[str] = field(default_factory=set)
    quotas: dict[tuple[str | None, str], float] = field(default_factory=dict)


@dataclass
class _Fault:
    method: str
    left: int  # calls until it strikes
    times: float
    error: ApiError | OperationFailure | LineCut
    after: bool  # it strikes when the request has taken effect


class World:
    """The state that services share, and the gate of every request."""

    def __init__(self, project: Project) -> None:
        self.clock = SimulatedClock()
        self.lock = self.clock.lock
        self.the_project = project
        self.calls: list[Call] = []
        self.delays = dict(DELAYS)
        self.endpoint, self.ca = "203.0.113.10", ""
        self.launches: dict[
            str, tuple[str, str]
        ] = {}  # by node pool: why its machines do not start, code and words
        self.clusters: dict = {}  # of the container API
        self._faults: list[_Fault] = []
        self._numbers = itertools.count(1)
        # Whether a service account has a permission on a target; `iam` knows
        self.may: Callable[[str, str, str], bool] = lambda *_: False

    def serve(
        self, method: str, target: str, act: Callable[[], object], *, title: str = "", by: str = "user"
    ):
        """Log a request, let a fault strike, check the rights, and act."""
        with self.lock:
            self.clock.settle()
            self.calls.append(Call(next(self._numbers), method, target, self.clock.date(), by))
            fault = self._fault(method, ApiError | LineCut)
            if fault is not None and not fault.after:
                raise fault.error
            self._allow(method, target, title, by)
            answer = act()
            if fault is not None:
                raise fault.error
            return answer

    def fail(
        self, method: str, nth: int, error: Exception | OperationFailure, *, times: float = 1, after=False
    ) -> None:
        """Let the nth call of this method from now on fail, and the ``times - 1`` after it.

        An `ApiError` refuses the request; an `OperationFailure` ends the operation that it begins.
        """
        with self.lock:
            self._faults.append(_Fault(method, nth - 1, times, error, after))

    def cut(self, nth: int, when: str, *, calls: float = math.inf) -> None:
        """Cut the line at the nth call from now on, ``before`` or ``after`` it took effect."""
        self.fail("*", nth, LineCut(), after=when == "after")
        self.fail("*", nth, LineCut(), times=calls - 1)

    def clear_faults(self) -> None:
        """Let calls through again, and forget faults that did not strike."""
        with self.lock:
            self._faults.clear()

    def operation_failure(self, method: str) -> OperationFailure | None:
        """The failure that a test wants for the operation of this call."""
        fault = self._fault(method, OperationFailure)
        return fault and fault.error

    def project(self, name: str) -> Project:
        """Find a project by id or number.

        Raises:
            ApiError: There is none, which the APIs do not tell from one that is not yours.
        """
        if name in (self.the_project.id, str(self.the_project.number)):
            return self.the_project
        words, metadata = f"Permission denied on resource project {name}.", {"consumer": f"projects/{name}"}
        raise ApiError("PERMISSION_DENIED", words, "CONSUMER_INVALID", metadata)

    def _fault(self, method: str, kind: type) -> _Fault | None:
        for fault in list(self._faults):
            if not isinstance(fault.error, kind) or not fnmatch.fnmatchcase(method, fault.method):
                continue
            if fault.left:
                fault.left -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            if fault.times >= 0:
                return fault
        return None

    def _allow(self, method: str, target: str, title: str, by: str) -> None:
        words = target.partition(":")[0].split("/")
        if "projects" not in words[:-1] or (name := words[words.index("projects") + 1]) == "-":
            return
        project = self.project(name)
        service = method.partition(".")[0]
        if service not in project.enabled and service != "serviceusage":
            raise service_disabled(service, title, project.id)
        permission = permission_of(method)
        if permission in project.denied if by == "user" else not self.may(by, permission, target):
            raise permission_denied(permission, f"projects/{project.id}")


def permission_of(method: str) -> str:
    """Derive the IAM permission of a method.

    Node pools are part of their cluster:
    https://cloud.google.com/kubernetes-engine/docs/reference/api-permissions

    Example:
        >>> permission_of("container.CreateNodePool"), permission_of("file.projects.locations.instances.get")
        ('container.clusters.update', 'file.instances.get')
    """
    service, *words = method.split(".")
    if service != "container":
        return ".".join((service, *words[-2:]))
    verb = re.match(r"(Create|Delete|Get|List)(?!NodePool)|(?:Get|List)NodePool", words[-1])
    kind = "operations" if "Operation" in words[-1] else "clusters"
    return f"container.{kind}.{(verb[1] or 'get').lower() if verb else 'update'}"
