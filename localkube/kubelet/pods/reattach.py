"""Going on after a kubelet's end: which containers still run, and how the others ended meanwhile.

The runtime knows each process that it started, by pid and start time, and keeps the ends that nobody has
acknowledged; the API has what was reported before. Together they give the records of a pod.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from localkube.kubelet.pods.pod import PodWorker
from localkube.kubelet.status.container_state import ContainerRecord
from localkube.runtime.client import RuntimeClient

LOST_CODE = 137


def records(pod: Mapping[str, Any]) -> dict[str, ContainerRecord]:
    """Return the container records that a pod's reported status amounts to."""
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return {item["name"]: _record(item) for item in statuses if _has_run(item)}


async def reattach(
    worker: PodWorker, entries: Iterable[Mapping[str, Any]], client: RuntimeClient, *, address: str | None
) -> None:
    """Give a worker its pod's past, before it is started.

    Args:
        worker: New, of a pod that a previous kubelet may have begun.
        entries: The runtime's descriptions of this pod's processes.
        client: The connection to the runtime, which hands out their pipes.
        address: The pod's address, if its sandbox still stands.
    """
    worker.address = address or (worker.pod.get("status") or {}).get("podIP")
    worker.records = records(worker.pod)
    latest: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for entry in entries:
        _, name, restart = entry["id"].split(".")
        if name not in latest or latest[name][0] < int(restart):
            latest[name] = (int(restart), entry)
    for name, (restart, entry) in latest.items():
        before = worker.records.get(name)
        if before and before.state == "terminated" and before.restart_count >= restart:
            await client.call("forget", id=entry["id"])
            continue
        last = before.last if before else None
        described, descriptors = await client.call("attach", id=entry["id"])
        worker.containers[name].reattach(described, descriptors, count=restart, last=last, before=before)
    for name, record in worker.records.items():
        if record.state == "running" and name not in latest:
            worker.records[name] = _lost(record)


def _lost(record: ContainerRecord) -> ContainerRecord:
    now = datetime.now().timestamp()
    return ContainerRecord(
        name=record.name,
        state="terminated",
        reason="ContainerStatusUnknown",
        message="the container ended with its node: that was switched off, or the cluster was stopped",
        started_at=record.started_at,
        finished_at=now,
        exit_code=LOST_CODE,
        restart_count=record.restart_count,
        container_id=record.container_id,
        last=record.last,
    )


def _has_run(item: Mapping[str, Any]) -> bool:
    return not item["state"].get("waiting") or bool(item.get("lastState"))


def _record(item: Mapping[str, Any]) -> ContainerRecord:
    last = item.get("lastState") or {}
    count = item["restartCount"]
    state = item["state"]
    previous = _state(item, last, count if state.get("waiting") else count - 1, None) if last else None
    return _state(item, state, count, previous)


def _state(
    item: Mapping[str, Any], state: Mapping[str, Any], count: int, last: ContainerRecord | None
) -> ContainerRecord:
    kind = next(iter(state))
    detail = state[kind]
    container_id = detail.get("containerID") or item.get("containerID", "")
    return ContainerRecord(
        name=item["name"],
        state=kind,
        reason=detail.get("reason", ""),
        message=detail.get("message", ""),
        started_at=_seconds(detail.get("startedAt")),
        finished_at=_seconds(detail.get("finishedAt")),
        exit_code=detail.get("exitCode"),
        signal=detail.get("signal"),
        restart_count=count,
        container_id=container_id.removeprefix("trainyard://"),
        ready=bool(item.get("ready")),
        started=bool(item.get("started")),
        last=last,
    )


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
