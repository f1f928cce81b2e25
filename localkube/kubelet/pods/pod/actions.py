"""The actions that follow from an event, as values; the pod's worker performs them."""

from collections.abc import Mapping
from dataclasses import dataclass

from localkube.kubelet.pods.pod.record import PodRecord


@dataclass(frozen=True)
class ReportStatus:
    """Report the status; ``ended`` is the identity of a container whose exit the report contains."""

    ended: str | None = None


@dataclass(frozen=True)
class EmitEvent:
    """Issue an Event for the pod; ``about`` is the path of the container that it is about."""

    reason: str
    message: str
    warning: bool = False
    about: str = ""


@dataclass(frozen=True)
class Stop:
    """Terminate the pod, or one container."""

    grace: float
    container: str = ""
    message: str = ""


@dataclass(frozen=True)
class Delete:
    """Stop the pod, report its end, and let the API delete it."""

    grace: float


@dataclass(frozen=True)
class Allocate:
    """Allocate resources of the node; or wait for them, and then evaluate the specification again."""

    requested: Mapping[str, int]
    is_deferred: bool = False


@dataclass(frozen=True)
class Actuate:
    """Continue a resize: a container has ended, or started."""


Action = ReportStatus | EmitEvent | Stop | Delete | Allocate | Actuate
Change = tuple[PodRecord, list[Action]]
