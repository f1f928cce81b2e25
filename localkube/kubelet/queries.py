"""Queries about pods and containers, for the kubelet's API."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.containers.process import Process
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.pods.pod import PodWorker
from localkube.kubelet.status.container_state import latest_run
from localkube.kubelet.streaming import port_forward
from localkube.tasks import start_task


class PodQueries:
    """The pods of all nodes."""

    def __init__(self, workers: Mapping[str, PodWorker]) -> None:
        self._workers = workers
        self._runtime: Runtime | None = None

    def set_runtime(self, runtime: Runtime) -> None:
        self._runtime = runtime
        runtime.logs.on_loss = self._log_lost

    @property
    def executions(self) -> Executions:
        return self._runtime.executions

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        found = (worker.pod for worker in self._workers.values())
        return next(
            (p for p in found if (p["metadata"]["namespace"], p["metadata"]["name"]) == (namespace, name)),
            None,
        )

    def process(self, pod: Mapping[str, Any], container: str) -> Process | None:
        worker = self._workers.get(pod["metadata"]["uid"])
        return worker.processes.get(container) if worker else None

    def end_input(self, process: Process) -> None:
        process.end_input()
        start_task(self._runtime.client.call("end_input", id=process.identity), name="end of input")

    async def connect(self, pod: Mapping[str, Any], port: int) -> port_forward.Streams:
        parts, uid = self._runtime, pod["metadata"]["uid"]
        return await port_forward.connect(parts.client, pod=uid, port=port, addresses=parts.addresses)

    def log_path(self, pod: Mapping[str, Any], container: str, *, previous: bool) -> Path | None:
        worker = self._workers.get(pod["metadata"]["uid"])
        record = worker.records.get(container) if worker else None
        run = latest_run(record, previous=previous)
        return None if run is None else self._runtime.log_path(worker.uid, container, run)

    def waiting_reason(self, pod: Mapping[str, Any], container: str) -> str | None:
        worker = self._workers.get(pod["metadata"]["uid"])
        record = worker.records.get(container) if worker else None
        if record is None:
            return "ContainerCreating"
        return record.reason if record.state == "waiting" and not record.last else None

    def _log_lost(self, path: Path, error: OSError) -> None:
        uid, _, container, _ = path.parts[-4:]
        if worker := self._workers.get(uid):
            message = f"Output of container {container} is lost until there is room for it: {error.strerror}"
            worker.runtime.events.record(worker.pod, "LogLost", message, warning=True)
