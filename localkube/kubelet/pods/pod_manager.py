"""The pods of all nodes: a worker for each, from the API's objects and the containers that run already.

It also answers the kubelet's API about pods and containers. ``pod/worker.py`` runs one pod.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localkube.api_client import Informer, object_key
from localkube.kubelet.containers.process import Process
from localkube.kubelet.heartbeat import work_of
from localkube.kubelet.nodes.virtual_node import ISOLATED, STOPPED, VirtualNode
from localkube.kubelet.pods.container_runtime import ContainerRuntime
from localkube.kubelet.pods.mirror_pods import MIRROR, is_mirror, is_mirror_of, with_status
from localkube.kubelet.pods.pod.reattach import reattach, restore
from localkube.kubelet.pods.pod.worker import PodWorker
from localkube.kubelet.pods.pod_files import check_file_names
from localkube.kubelet.pods.sandboxes import Sandboxes
from localkube.kubelet.resources.stats import RunningContainer
from localkube.kubelet.status.container_state import latest_run
from localkube.kubelet.streaming import port_forward
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager
from localkube.kubelet.work_pools import WALKS
from localkube.runtime.trees import removal
from localkube.tasks import start_task

log = logging.getLogger(__name__)

REFRESH_SECONDS, SECRET_SECONDS = 60, 2
# Certificates are smaller than what is read again every two seconds.
SMALL = 1 << 18
EXIT_POLL_SECONDS = 0.01


class PodManager:
    """The workers of the pods that are bound to these nodes.

    Args:
        new_worker: Called as ``PodWorker(pod, node=node)``.
    """

    def __init__(
        self,
        nodes: Mapping[str, VirtualNode],
        *,
        pods: Informer,
        runtime: ContainerRuntime,
        sandboxes: Sandboxes,
        volumes: VolumeManager,
        new_worker: Callable[..., PodWorker],
    ) -> None:
        self._nodes, self._pods, self._make_worker = nodes, pods, new_worker
        self._client, self._files, self._limits = runtime.client, runtime.files, runtime.limits
        self._sandboxes, self._volumes = sandboxes, volumes
        self._workers: dict[str, PodWorker] = {}
        self._leaving: dict[str, PodWorker] = {}
        self._static: dict[str, Mapping[str, Any]] = {}
        self._ends: dict[tuple[str, str], asyncio.Task[None]] = {}
        runtime.logs.on_loss = self._log_lost

    async def run(self) -> None:
        """Reattach to running pods, then follow the informer, which has synced."""
        answer, _ = await self._client.call("list")
        entries = _containers(answer)
        known = set(self.known())
        self._limits.keep_only({entry["id"] for entry in entries})
        # Pods with an address first: a new pod could get the address otherwise.
        for uid, pod in sorted(self.known().items(), key=lambda item: item[0] not in answer["pods"]):
            running = [entry for entry in entries if _uid(entry) == uid]
            if worker := self._new_worker(pod):
                address = answer["pods"].get(uid)
                if address and not pod["spec"].get("hostNetwork"):
                    worker.pool.address(uid, requested=address)
                await reattach(worker, running, address=address)
                worker.start()
                if self._nodes[pod["spec"]["nodeName"]].is_reachable:
                    worker.pod_updated(pod)
        # Pods of an isolated node keep running, even if they were deleted meanwhile.
        isolated = [node for node in self._nodes.values() if node.state == ISOLATED]
        known |= {
            uid for uid, place in answer["pods"].items() if any(node.has_address(place) for node in isolated)
        }
        await self._sweep(answer, known)
        # The informer may have seen changes meanwhile.
        self._pods.subscribe(self._changed)
        present = self.known()
        for uid in [uid for uid in self._workers if uid not in present]:
            self._deleted(uid)
        for pod in present.values():
            self._changed("ADDED", pod, None)

    async def refresh_volumes(self) -> None:
        """Update ConfigMap, Secret and token files once a minute, as the kubelet does.

        Pods with a small Secret are updated sooner: operators write their certificates into one after they
        have started, and do not serve until they see it.
        """
        for turn in itertools.count(1):
            await asyncio.sleep(SECRET_SECONDS)
            everyone = turn % (REFRESH_SECONDS // SECRET_SECONDS) == 0
            for worker in self.workers():
                volumes = worker.pod["spec"].get("volumes") or []
                is_small = self._volumes.shares.of_pod(worker.uid) < SMALL
                due = everyone or (is_small and any("secret" in volume for volume in volumes))
                try:
                    if due and not worker.record.finished and worker.record.volumes:
                        await self._volumes.refresh(worker.pod)
                except VolumeError as error:
                    worker.node.events.record(worker.pod, error.reason, error.message, warning=True)
                except Exception:  # one pod's volumes must not end those of all others
                    log.exception("volumes of pod %s", worker.uid)

    def container_exited(self, entry: dict[str, Any]) -> None:
        if worker := self._workers.get(_uid(entry)) or self._leaving.get(_uid(entry)):
            worker.container_exited(entry)

    def workers(self) -> list[PodWorker]:
        return list(self._workers.values())

    def running(self, node: str) -> list[RunningContainer]:
        return [
            RunningContainer(process.identity, name, worker.pod, process.pid, process.started)
            for worker in self._workers.values()
            if worker.pool.settings.name == node
            for name, process in worker.processes.items()
            if process.running
        ]

    # Faults of nodes.

    async def kill_all(self, node: VirtualNode) -> None:
        """Kill all processes of the node's pods without reporting it."""
        lost = {uid for uid, worker in self._workers.items() if worker.pool is node.pool}
        for uid in lost:
            self._workers.pop(uid).abandon()
        answer, _ = await self._client.call("list")
        lost |= {uid for uid, address in answer["pods"].items() if node.has_address(address)}
        running = [entry["id"] for entry in answer["entries"] if _uid(entry) in lost]
        for identity in running:
            await self._client.call("kill", id=identity, signal=9)
        while running:
            answer, _ = await self._client.call("list")
            alive = {entry["id"] for entry in answer["entries"] if entry["status"] is None}
            running = [identity for identity in running if identity in alive]
            await asyncio.sleep(EXIT_POLL_SECONDS)
        for uid in lost:
            await self._client.call("delete_pod", pod=uid)
            await self._sandboxes.remove(uid)
            await WALKS.walk(self._volumes.unmounting(uid))
            with contextlib.suppress(OSError):  # removed with the pod, or by the next kubelet
                await WALKS.walk(removal(self._files.tmpfs / uid))

    async def reconcile(self, node: VirtualNode) -> None:
        """Reconcile the node's pods with the API."""
        pods = self.known()
        for uid in [uid for uid, worker in self._workers.items() if worker.pool is node.pool]:
            if uid not in pods:
                self._deleted(uid)
        bound = [pod for pod in pods.values() if pod["spec"].get("nodeName") == node.name]
        # Pods with an address first: they keep it.
        for pod in sorted(bound, key=lambda pod: not pod.get("status", {}).get("podIP")):
            if worker := self._new_worker(pod):
                restore(worker)
                worker.start()
            if known := self._workers.get(pod["metadata"]["uid"]):
                known.pod_updated(pod)
        answer, _ = await self._client.call("list")
        await self._sweep(answer, {*pods, *self._workers, *self._leaving})

    # Static pods.

    def add_static(self, pod: Mapping[str, Any]) -> None:
        """Add a pod from a manifest file, before ``run``."""
        self._static[pod["metadata"]["uid"]] = pod

    def begin_static(self, pod: Mapping[str, Any]) -> None:
        """Run a pod from a manifest file, once an earlier pod of its name has ended."""
        self.add_static(pod)

        async def begin() -> None:
            if before := self._ends.get(object_key(pod)):
                await asyncio.wait([before])
            if pod["metadata"]["uid"] in self._static:
                self._changed("ADDED", dict(pod), None)

        start_task(begin(), name=f"static pod {pod['metadata']['name']}")

    def end_static(self, pod: Mapping[str, Any]) -> None:
        """Terminate a pod whose manifest file was removed, within its grace period."""
        uid = pod["metadata"]["uid"]
        self._static.pop(uid, None)
        if worker := self._workers.get(uid):

            async def end() -> None:
                await worker.stop(grace=worker.record.grace)
                self._deleted(uid)

            self._ends[object_key(pod)] = start_task(
                end(), name=f"end of static pod {pod['metadata']['name']}"
            )

    def known(self) -> dict[str, dict[str, Any]]:
        """Map uids to pods: the API's, and static pods with the status of their mirrors."""
        pods = self._pods.store
        known = {pod["metadata"]["uid"]: pod for pod in pods.values() if not is_mirror(pod)}
        for uid, pod in self._static.items():
            mirror = pods.get(object_key(pod))
            known[uid] = with_status(pod, mirror) if mirror and is_mirror_of(mirror, pod) else dict(pod)
        return known

    # Workers.

    def _new_worker(self, pod: Mapping[str, Any]) -> PodWorker | None:
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        uid = pod["metadata"]["uid"]
        if node is None or node.state == STOPPED or uid in self._workers or is_mirror(pod):
            return None
        try:
            check_file_names(pod)
            self._workers[uid] = self._make_worker(pod, node=node)
        except Exception:
            if uid not in self._static:
                raise
            log.exception("static pod %s cannot be run", pod["metadata"]["name"])  # it was not validated
            return None
        return self._workers[uid]

    def _changed(self, change: str, pod: dict[str, Any], before: dict[str, Any] | None) -> None:
        if is_mirror(pod):
            worker = self._workers.get(pod["metadata"]["annotations"][MIRROR])
            if worker is None or not is_mirror_of(pod, worker.pod) or change == "DELETED":
                return
            pod, before = with_status(worker.pod, pod), None
        uid = pod["metadata"]["uid"]
        if before and before["metadata"]["uid"] != uid:
            self._changed("DELETED", before, None)
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node and not node.is_reachable:
            return
        if change == "DELETED":
            self._deleted(uid)
        elif worker := self._new_worker(pod):
            restore(worker)  # of a node that returns, it may come before `reconcile`
            worker.start()
            worker.pod_updated(pod)
        elif uid in self._workers:
            self._workers[uid].pod_updated(pod)

    def _deleted(self, uid: str) -> None:
        if worker := self._workers.pop(uid, None):
            # Its containers may still run, and the worker waits for their exits.
            self._leaving[uid] = worker
            with work_of(worker.pod):
                task = start_task(worker.discard(), name=f"discard {uid}")
            task.add_done_callback(lambda _: self._leaving.pop(uid))

    async def _sweep(self, answer: Mapping[str, Any], known: set[str]) -> None:
        """Kill the processes of unknown pods, and remove their sandboxes and files."""
        for entry in _containers(answer):
            if _uid(entry) not in known:
                await self._client.call("kill", id=entry["id"], signal=9)
                await self._client.call("delete", id=entry["id"])
        for uid in answer["pods"].keys() - known:
            await self._sandboxes.remove(uid)
        left = {path.name for root in (self._files.pods, self._files.tmpfs) for path in root.iterdir()}
        start_task(self._remove_files(left - known), name="files of former pods")

    async def _remove_files(self, uids: set[str]) -> None:
        """Remove the remains of former pods in the background, one after the other."""
        for uid in uids:
            await self._files.remove_files(uid)

    # Queries of the kubelet's API.

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        for worker in self._workers.values():
            if object_key(worker.pod) == (namespace, name):
                return worker.pod
        return None

    def has_sandbox(self, pod: Mapping[str, Any]) -> bool:
        worker = self._workers.get(pod["metadata"]["uid"])
        return worker is not None and worker.record.has_sandbox

    def process(self, pod: Mapping[str, Any], container: str) -> Process | None:
        worker = self._workers.get(pod["metadata"]["uid"])
        return worker.processes.get(container) if worker else None

    def end_input(self, process: Process) -> None:
        process.end_input()
        start_task(self._client.call("close_stdin", id=process.identity), name="end of input")

    async def connect(self, pod: Mapping[str, Any], port: int) -> port_forward.Streams:
        """Connect to a port of a pod, or raise ``PortUnreachable``."""
        uid, addresses = pod["metadata"]["uid"], self._sandboxes.addresses
        return await port_forward.connect(self._client, pod=uid, port=port, addresses=addresses)

    def log_path(self, pod: Mapping[str, Any], container: str, *, previous: bool) -> Path | None:
        """Find the log of the container's latest or previous run; None where there is none."""
        worker = self._workers.get(pod["metadata"]["uid"])
        run = latest_run(worker.record.states.get(container) if worker else None, previous=previous)
        return None if worker is None or run is None else self._files.log_path(worker.uid, container, run)

    def waiting_reason(self, pod: Mapping[str, Any], container: str) -> str | None:
        """Get the reason why the container has not started yet; None once it has ever run."""
        worker = self._workers.get(pod["metadata"]["uid"])
        record = worker.record.states.get(container) if worker else None
        if record is None:
            return "ContainerCreating"
        return record.reason if record.state == "waiting" and not record.last else None

    def _log_lost(self, path: Path, error: OSError) -> None:
        uid, _, container, _ = path.parts[-4:]
        if worker := self._workers.get(uid):
            message = f"Output of container {container} is lost until there is room for it: {error.strerror}"
            worker.node.events.record(worker.pod, "LogLost", message, warning=True)


def _containers(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in answer["entries"] if entry["owner"] == "container"]


def _uid(entry: Mapping[str, Any]) -> str:
    return entry["id"].split(".")[0]
