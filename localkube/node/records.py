"""What becomes of a container, as records: not started, refused, running, ended. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localkube.node.processes import Exit, Process
from localkube.node.status import ContainerRecord, exit_reason

START_FAILED = 128
HOST_IMAGE = "trainyard://the-host's-file-system"


def next_run(before: ContainerRecord | None) -> tuple[int, ContainerRecord | None]:
    """Return the restart count of a container's next run, and the run before it."""
    if before is None:
        return 0, None
    again = before.last is not None and before.last.restart_count == before.restart_count
    return before.restart_count + again, before.last


def waiting(
    name: str, reason: str, message: str, count: int, last: ContainerRecord | None
) -> ContainerRecord:
    """Return the record of a container that could not be started yet."""
    return ContainerRecord(
        name=name, state="waiting", reason=reason, message=message, restart_count=count, last=last
    )


def refused(
    name: str, identity: str, message: str, now: float, count: int, last: ContainerRecord | None
) -> ContainerRecord:
    """Return the record of a container whose command cannot be executed: it ended as it started."""
    return ContainerRecord(
        name=name,
        state="terminated",
        reason="StartError",
        message=message,
        started_at=now,
        finished_at=now,
        exit_code=START_FAILED,
        restart_count=count,
        container_id=identity,
        image_id=HOST_IMAGE,
        last=last,
    )


def running(name: str, process: Process, count: int, last: ContainerRecord | None) -> ContainerRecord:
    """Return the record of a container that runs."""
    return ContainerRecord(
        name=name,
        state="running",
        started_at=process.started,
        restart_count=count,
        container_id=process.identity,
        image_id=HOST_IMAGE,
        ready=True,
        started=True,
        last=last,
    )


def ended(record: ContainerRecord, result: Exit, *, message: str, out_of_memory: bool) -> ContainerRecord:
    """Return the record of a container that ran and has ended."""
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


def by_kind(
    pod: Mapping[str, Any], records: Mapping[str, ContainerRecord]
) -> tuple[dict[str, ContainerRecord], dict[str, ContainerRecord]]:
    """Return the records of the containers, and those of the init containers."""
    inits = {container["name"] for container in pod["spec"].get("initContainers") or []}
    main = {name: record for name, record in records.items() if name not in inits}
    return main, {name: record for name, record in records.items() if name in inits}
