"""Reattach to the containers of a previous kubelet: some still run, others have ended meanwhile.

The runtime knows each process by pid and start time, and keeps exits until they are acknowledged; the API has
the last reported status. Together they give the records of a pod.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from localkube.kubelet.pods.pod import events
from localkube.kubelet.pods.pod.worker import PodWorker
from localkube.kubelet.status.container_state import (
    STATUSES,
    ContainerExit,
    ContainerRecord,
    ended,
    latest_run,
)

LOST_CODE = 137


def records(pod: Mapping[str, Any]) -> dict[str, ContainerRecord]:
    """Rebuild container records from a pod's reported status."""
    status = pod.get("status") or {}
    statuses = [item for field in STATUSES.values() for item in status.get(field) or []]
    run = [item for item in statuses if not item["state"].get("waiting") or item.get("lastState")]
    return {item["name"]: _record(item) for item in run}


async def reattach(worker: PodWorker, entries: Iterable[Mapping[str, Any]], *, address: str | None) -> None:
    """Restore a pod's state in its new worker."""
    latest: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for entry in entries:
        _, name, restart = entry["id"].split(".")
        if name not in latest or latest[name][0] < int(restart):
            latest[name] = (int(restart), entry)
    restore(worker, address=address, running=latest.keys())
    for name, (restart, entry) in latest.items():
        before = worker.record.states.get(name)
        if before and before.state == "terminated" and before.restart_count >= restart:
            worker.runtime.limits.ended(entry["id"])
            await worker.runtime.client.call("delete", id=entry["id"])
            continue
        described, descriptors = await worker.runtime.client.call("attach", id=entry["id"])
        worker.containers[name].reattach(described, descriptors, count=restart)


def restore(worker: PodWorker, *, address: str | None = None, running: Collection[str] = ()) -> None:
    """Restore the reported state of a pod: it is new, its node was switched off, or its kubelet ended.

    Args:
        running: The containers of which the runtime knows; the others' runs are lost.
    """
    pod, files = worker.record.pod, worker.runtime.files
    states = records(pod)
    for name in worker.record.containers.keys() - running:
        state = states.get(name)
        known = latest_run(state, previous=False)
        newest = files.newest_run_logged(worker.record.uid, name)
        if newest is not None and (known is None or known < newest):  # it ended before the API knew of it
            last = state.last if state and state.state == "waiting" else state
            state = ContainerRecord(name, "running", restart_count=newest, last=last)
        if state and state.state == "running":
            states[name] = _lost(state)
    worker.apply(events.restored, address or (pod.get("status") or {}).get("podIP"), states)


def _lost(record: ContainerRecord) -> ContainerRecord:
    end = ContainerExit(LOST_CODE, None, time.time())
    message = "the container ended with its node: that was switched off, or the cluster was stopped"
    lost = ended(record, end, message=message, out_of_memory=False)
    return replace(lost, reason="ContainerStatusUnknown", resources=None, user=None)


def _record(item: Mapping[str, Any]) -> ContainerRecord:
    state, last, count = item["state"], item.get("lastState") or {}, item["restartCount"]
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
        image=item.get("image", ""),
        image_id=item.get("imageID", ""),
        resources=item.get("resources"),
        user=item.get("user"),
        ready=bool(item.get("ready")),
        started=bool(item.get("started")),
        last=last,
    )


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
