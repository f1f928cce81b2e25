"""The lifecycle of one pod: sandbox, volumes, containers in their order, end, deletion.

One task per pod. Containers survive this process, because they are the runtime's; the API has the rest.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from localkube.api_path import api_path
from localkube.errors import ApiError
from localkube.kubelet.containers.termination import waits_for
from localkube.kubelet.heartbeat import stalled, work_of
from localkube.kubelet.nodes.node import is_ready
from localkube.kubelet.nodes.runtime_class import check_runtime_class
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.kubelet.plugins.resource_claims import ClaimPreparationError
from localkube.kubelet.plugins.rpc import PluginError
from localkube.kubelet.pods import admission
from localkube.kubelet.pods.container_runtime import ContainerRuntime
from localkube.kubelet.pods.container_worker import ContainerWorker
from localkube.kubelet.pods.mirror_pods import is_mirror, with_status
from localkube.kubelet.pods.network_files import HostnameError
from localkube.kubelet.pods.pod_state import PodState
from localkube.kubelet.pods.resize import PodResize
from localkube.kubelet.pods.sandboxes import Sandboxes
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.pods.status_manager import StatusManager
from localkube.kubelet.resources.allocation import requests
from localkube.kubelet.resources.pressure import Pressure
from localkube.kubelet.status import container_state
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, MAIN
from localkube.kubelet.status.pod_status import (
    DEADLINE_EXCEEDED,
    EVICTED,
    NODE_SHUTDOWN,
    TERMINAL,
    pod_status,
    rejected_status,
)
from localkube.kubelet.status.restart_policy import removed_to_restart
from localkube.kubelet.status.unsupported_fields import unsupported_fields, unsupported_fields_in_plain_mode
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager
from localkube.runtime.client import RuntimeCallError, RuntimeExited
from localkube.tasks import run_together, start_task, wait_for_first

log = logging.getLogger(__name__)

OWN_PROCESSES = "the pod has the user of the cluster's own processes, and could end them"
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 10.0
EVICTION_GRACE_SECONDS, RESTART_SECONDS = 1.0, 1.0


class PodWorker(PodState):
    """Runs one pod as its specification says, and reports its status.

    Args:
        starting: The pods that start, of which it is one at first.
        turns: Limits how many pods report at the same time.
    """

    def __init__(
        self,
        pod: Mapping[str, Any],
        *,
        node: VirtualNode,
        runtime: ContainerRuntime,
        sandboxes: Sandboxes,
        volumes: VolumeManager,
        pressure: Pressure,
        starting: StartingPods,
        turns: asyncio.Semaphore,
    ) -> None:
        super().__init__(pod, node=node, runtime=runtime)
        self._sandboxes, self._volume_manager = sandboxes, volumes
        self._pressure, self._starting = pressure, starting
        self.resources = PodResize(self, pod)
        # The specification has what the node has allocated, where that is not what it wants.
        self.pod = self.resources.pod
        self._prepared = self.finished = False  # prepared: sandbox and volumes
        spec = pod["spec"]
        self._inits = [ContainerWorker(self, c, kind=INIT) for c in spec.get(INIT) or []]
        self._main = [ContainerWorker(self, c, kind=MAIN) for c in spec[MAIN]]
        self._ephemeral = [ContainerWorker(self, c, kind=EPHEMERAL) for c in spec.get(EPHEMERAL) or []]
        workers = [*self._inits, *self._main, *self._ephemeral]
        self.containers: dict[str, ContainerWorker] = {worker.name: worker for worker in workers}
        # Containers that do not keep the pod alive: sidecars and ephemeral ones. None before it is prepared.
        self._beside: list[asyncio.Task[None]] | None = None
        self._updated = asyncio.Event()
        self._override: tuple[str, str, str] | None = None
        self._reports = StatusManager(
            node.api,
            client=runtime.client,
            turns=turns,
            path=self._path,
            pod=lambda: self.pod,
            status=self._status,
            answered=self._update,
        )
        self._task: asyncio.Task[None] | None = None
        self._had_devices: dict[str, list[dict[str, Any]]] = {}  # the last status comes after their release
        before = pod.get("status") or {}
        self._rejected = before.get("phase") in TERMINAL and "containerStatuses" not in before
        reported = before.get("startTime")
        self._is_new = not reported
        self._start_time = datetime.fromisoformat(reported).timestamp() if reported else time.time()

    # What the kubelet calls.

    def start(self) -> None:
        self.resources.start()
        self.pool.add(self.pod, report=self.report)
        if self._is_new:
            self._starting.begin(self.uid)
        with work_of(self.pod):
            self._task = start_task(self._run(), name=f"pod {self._path}")

    def changed(self, pod: Mapping[str, Any]) -> None:
        """Take a newer version of the pod's object."""
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") and not (
            metadata.get("deletionGracePeriodSeconds", 30) or metadata.get("finalizers")
        ):
            self._reports.gone()  # the API forgets it by itself, at this moment
        self._update(pod)
        gates = pod["spec"].get("readinessGates")
        observed = (pod.get("status") or {}).get("observedGeneration")
        if not self.finished and observed and observed != pod["metadata"].get("generation"):
            self._reports.soon()
        if not self.finished and self.processes and (gates or not is_ready(pod)):
            # The node controller says so of every pod of a node that was silent for a while.
            self._reports.soon()
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
            if self._deleting is None or grace < self._deleting:
                self._deleting = grace
                self.in_background(self._delete(grace))

    def container_exited(self, entry: dict[str, Any]) -> None:
        """Take the exit of one of this pod's containers."""
        for process in self.processes.values():
            if process.identity == entry["id"]:
                process.set_exit(entry)
                return
        self.early[entry["id"]] = entry

    async def discard(self) -> None:
        """Remove everything: the object is gone from the API, and so is its claim to the node's resources."""
        self.pool.remove(self.uid)
        self._reports.gone()
        await self.stop(grace=0)
        if self._task:
            await asyncio.wait([self._task])
        await self.quiet.wait()
        await self._release()
        await self.runtime.client.call("delete_pod", pod=self.uid)
        self.node.events.forget(self.uid)
        await self.runtime.files.remove_files(self.uid)

    def abandon(self) -> None:
        """Stop managing the pod, without reporting: its node was stopped."""
        for task in (self._task, *self._background):
            if task:
                task.cancel()
        self._reports.abandon()
        self._starting.end(self.uid)
        for container in self.containers.values():
            container.abandon()
        for process in self.processes.values():
            self.runtime.limits.ended(process.identity)
            process.close()
        self.pool.release(self.uid)

    async def stop(self, *, grace: float, override: tuple[str, str, str] | None = None) -> None:
        """End all containers: hooks, SIGTERM, and SIGKILL after ``grace`` seconds.

        A second call with less grace shortens the first one's.

        Args:
            override: Phase, reason and message of a pod that does not end by itself.
        """
        if override and not self.stopping.is_set():
            self._override = override
        self.stopping.set()
        ends = []
        for name, process in self.processes.items():
            earlier = [self.processes[wait] for wait in waits_for(self.pod, name) if wait in self.processes]
            if process.running:
                ends.append(self.containers[name].stop(grace=grace, after=earlier))
        await asyncio.gather(*ends)

    def evict(self, message: str) -> None:
        if not self.stopping.is_set():
            self.event("Evicted", message, warning=True)
            self.in_background(self.stop(grace=EVICTION_GRACE_SECONDS, override=(*EVICTED, message)))

    async def terminate(self, *, grace: float) -> None:
        """End it with its node, which is shutting down; at most ``grace`` seconds are left."""
        own = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        await self.stop(grace=min(own, grace), override=NODE_SHUTDOWN)
        if self._task:
            await asyncio.wait([self._task])

    # Its life.

    def _update(self, pod: Mapping[str, Any]) -> None:
        """Take a newer specification, from the watch or in the answer to a report."""
        if is_mirror(pod):
            pod = with_status(self.resources.wanted, pod)
        self.resources.wanted = pod
        self.sync_containers()

    def sync_containers(self) -> None:
        """Hand on the specification, with the resources that the node has allocated by now."""
        if self.resources.evaluate():
            self.report()
        self.pod = self.resources.pod
        self._updated.set()
        for kind, container in container_state.containers(self.pod):
            if worker := self.containers.get(container["name"]):
                worker.update(container)
            elif kind == EPHEMERAL:
                self._report_unsupported({"spec": {MAIN: [container]}})
                worker = self.containers[container["name"]] = ContainerWorker(self, container, kind=kind)
                self._ephemeral.append(worker)
                if self._beside is not None:
                    self._beside.append(self.in_background(worker.keep()))
        self.resources.actuate()

    async def _run(self) -> None:
        try:
            if self._is_new and (refused := await self._refusal()):
                reason, message = refused
                self.event(reason, message, warning=True)
                self._rejected = True
                self._override = ("Failed", reason, f"Pod was rejected: {message}")
            elif self.pod.get("status", {}).get("phase") not in TERMINAL:
                if broken := stalled(self._starting.stalls.get(self.uid, 0)):
                    self.event(*broken[1:], warning=True)
                    await self.stop(grace=EVICTION_GRACE_SECONDS, override=broken)
                deadline = self.in_background(self._watch_deadline())
                await self._sync_with_retry()
                deadline.cancel()
            await self.pool.claims.unprepare(self.uid, self.event)
            self.finished = True
            self._starting.end(self.uid)
            await self._release()
            self._reports.soon()
            await self._reports.sent()
            await self._volume_manager.release(self.pod)
        except RuntimeExited:
            log.info("pod %s: the runtime has ended", self._path)

    async def _refusal(self) -> tuple[str, str] | None:
        """Explain why the node does not admit it, by reason and message; None when it does."""
        if pressure := self._pressure.refusal(self.pod):
            return EVICTED[1], pressure
        if self.pool.shutting_down:
            return "NodeShutdown", "Pod was rejected as the node is shutting down."
        node = self.node.object
        if not admission.fits(self.pod, node or {}):
            node = None  # its labels may just have changed
            with contextlib.suppress(ApiError):
                node = await self.node.api.get(api_path("v1/nodes", name=self.node.name))
        shortage = self.pool.allocations.shortage(self.uid, requests(self.pod))
        other_pods = self.pool.others(self.uid)
        if refused := admission.refusal(self.pod, other_pods=other_pods, node=node, shortage=shortage):
            return refused
        try:
            await self.pool.devices.allocate(self.pod)
        except PluginError as error:
            return "UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected"
        return None

    async def _sync_with_retry(self) -> None:
        """Run the pod's lifecycle; on an error of our own, report it on the pod and retry."""
        if self._is_new:
            self._report_unsupported(self.pod)
        delay = RETRY_SECONDS
        while True:
            try:
                await self._sync()
                return
            except RuntimeExited:
                raise
            except Exception as error:  # noqa: BLE001 - a bug in one pod's life must show on that pod
                if isinstance(error, ExceptionGroup) and error.subgroup(RuntimeExited):
                    raise RuntimeExited("the runtime has ended") from error
                log.exception("pod %s", self._path)
                self.event("FailedSync", f"error syncing pod, trying again: {error!r}", warning=True)
                for task in self._beside or ():
                    task.cancel()
                self._beside = None
                await self.pause(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    def _report_unsupported(self, pod: Mapping[str, Any]) -> None:
        check = unsupported_fields_in_plain_mode if self.runtime.host.plain else unsupported_fields
        vain = check(pod)
        wants_processes = pod["spec"].get("hostPID") and not self.runtime.host.plain
        if wants_processes and "pid" not in self.runtime.ids.shared_with_node(self.pod):
            vain.append(f"hostPID is not supported: {OWN_PROCESSES}")
        if vain:
            self.event("UnsupportedFields", "; ".join(vain), warning=True)

    async def _sync(self) -> None:
        if await self._prepare():
            self._beside = [self.in_background(worker.keep()) for worker in self._ephemeral]
            while True:
                sidecars: list[asyncio.Task[None]] = []
                if await self._initialise(sidecars):
                    for worker in self._main:
                        # One after the other, since a postStart hook holds up what comes after it.
                        if not self.stopping.is_set() and not self.restarting.is_set():
                            await worker.begin()
                    self.in_background(self._started())
                    await run_together(worker.keep(started=True) for worker in self._main)
                if self.stopping.is_set() or not self.restarting.is_set():
                    break
                await asyncio.gather(*sidecars)
                await self._restart()
        await self.stop(grace=self.grace)
        await asyncio.gather(*self._beside or ())
        # Those of a previous kubelet, where the pod was stopped before it could continue.
        await run_together(self.containers[name].keep() for name in list(self.processes))

    async def _started(self) -> None:
        await self._reports.sent()
        self._starting.end(self.uid)

    def restart_all(self) -> None:
        """End all containers but ephemeral ones, without grace, so that all of them start again."""
        self.restarting.set()
        self.report()
        for worker in (*self._inits, *self._main):
            self.in_background(worker.stop(grace=0))
            worker.wake()

    async def _restart(self) -> None:
        """Let all containers start again, as if they had never run; volumes and sandbox stay."""
        for worker in (*self._inits, *self._main):
            if worker.record:
                self.records[worker.name] = removed_to_restart(worker.record)
        self.report()
        await self.pause(RESTART_SECONDS)
        self.restarting.clear()
        self.report()

    async def _initialise(self, sidecars: list[asyncio.Task[None]]) -> bool:
        """Run init containers in order, sidecars beside them; False if the pod ends or all start again."""
        initialised = any(worker.record and worker.record.state != "waiting" for worker in self._main)
        for worker in self._inits:
            if worker.sidecar:
                sidecars.append(self.in_background(worker.keep()))
                assert self._beside is not None
                self._beside.append(sidecars[-1])
                if not initialised:
                    await wait_for_first(worker.started.wait(), self.stopping.wait(), self.restarting.wait())
                continue
            await worker.keep()
            record, ends = worker.record, self.stopping.is_set() or self.restarting.is_set()
            if ends or record is None or record.exit_code != 0:
                return False
        return not self.stopping.is_set() and not self.restarting.is_set()

    # Its sandbox and volumes.

    @property
    def has_sandbox(self) -> bool:
        """Check whether its namespaces exist: they come before its containers, and go when all have ended."""
        return self.address is not None and not self.finished

    async def _prepare(self) -> bool:
        """Make sandbox and volumes; False when the pod is stopped before. Harmless to repeat."""

        async def prepare() -> None:
            in_node, pool = self.pod["spec"].get("hostNetwork"), self.pool
            address = pool.settings.address if in_node else pool.address(self.uid, requested=self.address)
            self.address = address
            if self.pool.directory.is_mounted_by(self.pod):
                self.pool.claims.open(self.node.api)
                await self.pool.devices.open()
            await check_runtime_class(self.node.api, self.pod)
            await self.pool.claims.prepare(self.node.api, self.pod)
            sandbox = self._sandboxes.create(self.pod, node=self.node, address=address, fresh=self._is_new)
            _, self.volumes = await asyncio.gather(sandbox, self._volume_manager.prepare(self.pod))
            self._prepared = True

        return await self._until_done(prepare)

    async def _until_done(self, attempt: Callable[[], Awaitable[None]]) -> bool:
        """Repeat ``attempt`` until it succeeds; False when the pod is stopped. Failures become Events."""
        delay = RETRY_SECONDS
        while not self.stopping.is_set():
            try:
                await attempt()
                return True
            except (VolumeError, ClaimPreparationError) as error:
                self.event(error.reason, error.message, warning=True)
            except RuntimeCallError as error:
                message = f"Failed to create pod sandbox: {error.message}"
                self.event("FailedCreatePodSandBox", message, warning=True)
            except HostnameError as error:
                self.event("FailedCreatePodSandBox", str(error), warning=True)
            except ApiError as error:
                self.event("FailedMount", str(error), warning=True)
            self.report()
            if await self.pause(delay):
                break
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)
        return False

    async def _release(self) -> None:
        """Give back namespaces and address."""
        if self.address:
            await self._sandboxes.remove(self.uid)
        self._give_back()
        self.pool.release(self.uid)

    def _give_back(self) -> None:
        """Give back what the node allocated to it, before its end is reported and another pod bound."""
        self._had_devices = self._had_devices or self._devices()
        self.pool.devices.release(self.uid)
        self.pool.remove(self.uid)

    # Its end.

    async def _watch_deadline(self) -> None:
        """End the pod at its ``activeDeadlineSeconds``, which an update may set or shorten."""
        while True:
            self._updated.clear()
            seconds = self.pod["spec"].get("activeDeadlineSeconds")
            left = None if seconds is None else self._start_time + seconds - time.time()
            try:
                await asyncio.wait_for(self._updated.wait(), left)
            except TimeoutError:
                break
        self.event(*DEADLINE_EXCEEDED[1:])
        await self.stop(grace=self.grace, override=DEADLINE_EXCEEDED)

    async def _delete(self, grace: float) -> None:
        """Stop, report the end, and let the API delete the pod."""
        if not self.finished:
            await self.stop(grace=grace)
        if self._task:
            await asyncio.wait([self._task])
        if not grace:
            return  # it was forced, or had ended already: the API forgets it by itself
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        try:
            await self.node.api.delete(self._path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                log.warning("delete %s: %s", self._path, error)

    # Its status.

    def _status(self) -> dict[str, Any]:
        if self._rejected:
            return rejected_status(self.pod, override=self._override, start_time=self._start_time)
        status = pod_status(
            self.pod,
            records=self.records | self.replaced,
            resizes=[] if self.finished else list(self.resources.conditions.values()),
            # As from a kubelet, which mounts the volumes before it makes the sandbox.
            pod_ip=self.address if self._prepared or self._has_run else None,
            host_ip=self.pool.settings.address,
            start_time=self._start_time,
            now=time.time(),
            override=self._override,
            terminal=self.finished,
            restarting=self.restarting.is_set(),
            devices=self._had_devices or self._devices(),
        )
        if status["phase"] in TERMINAL:
            self._give_back()
        return status

    def _devices(self) -> dict[str, list[dict[str, Any]]]:
        devices, claims = self.pool.devices, self.pool.claims
        return {
            name: devices.statuses(self.uid, name) + claims.statuses(self.pod, name)
            for name in self.containers
        }

    @property
    def _has_run(self) -> bool:
        return any(record.container_id for record in self.records.values())

    # Small things.

    def report(self, *, ended: str | None = None) -> None:
        self._reports.soon(ended=ended)

    def actuate(self) -> None:
        self.resources.actuate()
