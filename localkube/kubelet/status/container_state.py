"""Records of a container's state: waiting, running, terminated. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

# The lists of a PodSpec that have containers, and the lists of a PodStatus for them.
MAIN, INIT, EPHEMERAL = "containers", "initContainers", "ephemeralContainers"
STATUSES = {INIT: "initContainerStatuses", MAIN: "containerStatuses", EPHEMERAL: "ephemeralContainerStatuses"}
HOST_IMAGE = "trainyard://the-host's-file-system"
IMAGE_FAILED, IMAGE_BACK_OFF, NEVER_PULL, INVALID_NAME = IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
)


@dataclass(frozen=True)
class ContainerExit:
    """A process's exit: ``code`` as in a shell (128 + signal), and the time."""

    code: int
    signal: int | None
    ended: float


@dataclass(frozen=True)
class ContainerRecord:
    """The state of a container's latest run.

    Attributes:
        state: ``waiting``, ``running`` or ``terminated``.
        exit_code: 0 to 255; 128 + n for signal n. 128 (``StartError``) or 127 when it never started.
        signal: The signal that ended it.
        restart_count: Runs before this one.
        last: The run before this one, or, while waiting to run again, the one that ended.
        ready: A running container's readiness probe passes, or it has none.
        started: A running container's startup probe has passed, or it has none.
        image: The image of the definition that runs.
        resources: The requests and limits that the run has.
        image_id: The image that actually runs, or the root file system's name.
    """

    name: str
    state: str
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    restart_count: int = 0
    last: "ContainerRecord | None" = None
    container_id: str = ""
    ready: bool = False
    started: bool = False
    image: str = ""
    resources: Mapping[str, Any] | None = None
    user: Mapping[str, Any] | None = None
    image_id: str = ""


def exit_reason(exit_code: int, signal: int | None = None, oom: bool = False) -> str:
    """Find the reason of a terminated state: OOMKilled, Completed or Error."""
    if oom:
        return "OOMKilled"
    return "Completed" if exit_code == 0 and not signal else "Error"


def next_run(before: ContainerRecord | None) -> tuple[int, ContainerRecord | None]:
    """Compute the restart count of a container's next run, and the record of the previous run."""
    if before is None:
        return 0, None
    again = before.last is not None and before.last.restart_count == before.restart_count
    return before.restart_count + again, before.last


def latest_run(record: ContainerRecord | None, *, previous: bool) -> int | None:
    """Find the run whose log ``kubectl logs`` shows; None if there is none.

    ``previous`` is the last run that has ended while another runs or is pending, as in the kubelet.
    """
    if record is not None and not previous and record.state != "waiting":
        return record.restart_count
    return record.last.restart_count if record is not None and record.last else None


def ended(
    record: ContainerRecord, result: ContainerExit, *, message: str, out_of_memory: bool
) -> ContainerRecord:
    return replace(
        record,
        state="terminated",
        reason=exit_reason(result.code, result.signal, out_of_memory),
        message=message,
        finished_at=result.ended,
        exit_code=result.code,
        signal=result.signal,
        ready=False,
        started=False,
    )


def containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each container of a pod with the list that it is in, init containers first."""
    for kind in STATUSES:
        for container in pod["spec"].get(kind) or []:
            yield kind, container
