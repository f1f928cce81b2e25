"""Runs one pod: sandbox, volumes, containers in order, termination, deletion.

One task per pod. Containers survive the kubelet, because they belong to the runtime; the API has the rest.
The pod's state is in its record, which only the events of ``events.py`` change.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from localkube.api_path import api_path
from localkube.errors import ApiError
from localkube.kubelet.containers.process import Process
from localkube.kubelet.containers.termination import waits_for
from localkube.kubelet.heartbeat import stall_outcome, work_of
from localkube.kubelet.nodes.runtime_class import check_runtime_class
from localkube.kubelet.nodes.virtual_node import VirtualNode
from localkube.kubelet.plugins.resource_claims import ClaimPreparationError
from localkube.kubelet.plugins.rpc import PluginError
from localkube.kubelet.pods import admission
from localkube.kubelet.pods.container_runtime import ContainerRuntime
from localkube.kubelet.pods.mirror_pods import is_mirror, with_status
from localkube.kubelet.pods.network_files import HostnameError
from localkube.kubelet.pods.pod import events, resize
from localkube.kubelet.pods.pod.actions import (
    Action,
    Actuate,
    Allocate,
    Delete,
    EmitEvent,
    ReportStatus,
    Stop,
)
from localkube.kubelet.pods.pod.container_worker import ContainerWorker
from localkube.kubelet.pods.pod.driver import PodDriver
from localkube.kubelet.pods.pod.record import Outcome
from localkube.kubelet.pods.pod.status_manager import StatusManager
from localkube.kubelet.pods.sandboxes import Sandboxes
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.resources.allocation import requests
from localkube.kubelet.resources.limits import ResizeError
from localkube.kubelet.resources.pressure import Pressure
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, MAIN
from localkube.kubelet.status.pod_status import (
    DEADLINE_EXCEEDED,
    EVICTED,
    NODE_SHUTDOWN,
    TERMINAL,
    pod_status,
    rejected_status,
)
from localkube.kubelet.status.restart_policy import is_sidecar
from localkube.kubelet.status.unsupported_fields import unsupported_fields, unsupported_fields_in_plain_mode
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager
from localkube.runtime.client import RuntimeCallError, RuntimeExited
from localkube.tasks import run_together, start_task

log = logging.getLogger(__name__)

OWN_PROCESSES = "the pod has the user of the cluster's own processes, and could end them"
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 10.0
RESTART_SECONDS, RESIZE_RETRY_SECONDS = 1.0, 10.0


class PodWorker(PodDriver):
    """Runs one pod as its specification says, and reports its status.

    Args:
        starting: Counts the pods that are starting.
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
        super().__init__(events.first_record(pod, now=time.time()), node=node, runtime=runtime)
        self.uid, self.pool = self.record.uid, node.pool
        self._sandboxes, self._volume_manager = sandboxes, volumes
        self._pressure, self._starting = pressure, starting
        self.containers = {name: ContainerWorker(self, name) for name in self.record.containers}
        # Containers that do not keep the pod alive: sidecars and ephemeral ones. None before it is prepared.
        self._auxiliary: list[asyncio.Task[None]] | None = None
        self._reports = StatusManager(self, turns=turns)
        self._task: asyncio.Task[None] | None = None
        self._resize: asyncio.Task[None] | None = None

    @property
    def pod(self) -> Mapping[str, Any]:
        return self.record.pod

    @property
    def processes(self) -> dict[str, Process]:
        """The processes of the pod's containers, by name."""
        processes = {name: container.process for name, container in self.containers.items()}
        return {name: process for name, process in processes.items() if process}

    def perform(self, action: Action) -> None:
        match action:
            case ReportStatus(identity):
                self._reports.schedule(ended=identity)
            case EmitEvent(reason, message, warning, about):
                self.node.events.record(self.pod, reason, message, warning=warning, field=about)
            case Stop(grace, "", _):
                self.in_background(self.stop(grace=grace))
            case Stop(grace, name, message):
                self.in_background(self.containers[name].stop(grace=grace, message=message))
            case Delete(grace):
                self.in_background(self._delete(grace))
            case Allocate(requested, False):
                self.pool.allocations.allocate(self.uid, requested)
            case Allocate(requested, True):
                self.pool.allocations.wait(self.record.desired, requested, self._evaluate)
            case Actuate():
                if resize.IN_PROGRESS in self.record.resizes and (not self._resize or self._resize.done()):
                    self._resize = self.in_background(self._actuate())

    # What the kubelet calls.

    def start(self) -> None:
        if (self.record.desired.get("status") or {}).get("phase") not in TERMINAL:
            self.pool.allocations.allocate(self.uid, requests(self.pod))
        self.pool.add(self.pod, report=self._reports.schedule)
        if self.record.is_new:
            self._starting.begin(self.uid)
        with work_of(self.pod):
            self._task = start_task(self._run(), name=f"pod {self.path}")

    def pod_updated(self, pod: Mapping[str, Any]) -> None:
        """Handle a newer object of the pod from the watch."""
        self.apply_newer(pod)
        self.apply(events.observed, pod)

    async def discard(self) -> None:
        """Remove everything: the object is gone from the API, and so is its claim to the node's resources."""
        self.pool.remove(self.uid)
        self.apply(events.update_facts, is_gone=True)
        await self.stop(grace=0)
        if self._task:
            await asyncio.wait([self._task])
        await self.until(lambda record: record.is_quiet)
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
        self.pool.release(self.uid)

    async def stop(self, *, grace: float, override: Outcome | None = None) -> None:
        """End all containers: hooks, SIGTERM, and SIGKILL after ``grace`` seconds.

        A second call with less grace shortens the first one's.

        Args:
            override: Phase, reason and message of a pod that does not end by itself.
        """
        self.apply(events.stopped, override)
        ends, processes = [], self.processes
        for name, process in processes.items():
            earlier = [processes[wait] for wait in waits_for(self.pod, name) if wait in processes]
            if process.running:
                ends.append(self.containers[name].stop(grace=grace, after=earlier))
        await asyncio.gather(*ends)

    async def terminate(self, *, grace: float) -> None:
        """End it with its node, which is shutting down; at most ``grace`` seconds are left."""
        own = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        await self.stop(grace=min(own, grace), override=NODE_SHUTDOWN)
        if self._task:
            await asyncio.wait([self._task])

    # The pod's lifecycle.

    def apply_newer(self, pod: Mapping[str, Any]) -> None:
        self._evaluate(with_status(self.record.desired, pod) if is_mirror(pod) else pod)

    def _evaluate(self, newer: Mapping[str, Any] | None = None) -> None:
        """Evaluate a newer specification, or the desired one again."""
        pod = newer or self.record.desired
        shortage = self.pool.allocations.shortage(self.uid, requests(pod))
        self.apply(events.specified, pod, shortage=shortage)
        for name in self.record.containers.keys() - self.containers.keys():  # ephemeral ones
            self._report_unsupported({"spec": {MAIN: [self.record.containers[name].spec]}})
            worker = self.containers[name] = ContainerWorker(self, name)
            if self._auxiliary is not None:
                self._auxiliary.append(self.in_background(worker.run()))

    def container_exited(self, entry: dict[str, Any]) -> None:
        """Handle the exit of one of this pod's containers."""
        self.apply(events.exited, entry)
        for process in self.processes.values():
            if process.identity == entry["id"]:
                process.set_exit(entry)

    async def _actuate(self) -> None:
        """Resize the containers to their allocated resources, and retry where usage forbids it."""
        while resize.IN_PROGRESS in self.record.resizes and not self.record.stopping:
            try:
                done = [container.resize() for container in list(self.containers.values())]
            except ResizeError as error:
                self.apply(resize.failed, str(error))
                await self.pause(RESIZE_RETRY_SECONDS)
                continue
            # Otherwise a container is restarted, and the resize continues once it runs.
            self.apply(resize.tried, done=all(done))
            return

    async def _run(self) -> None:
        try:
            if self.record.is_new and (refused := await self._refusal()):
                self.apply(events.rejected, *refused)
            elif self.pod.get("status", {}).get("phase") not in TERMINAL:
                if broken := stall_outcome(self._starting.stalls.get(self.uid, 0)):
                    self.perform(EmitEvent(*broken[1:], warning=True))
                    await self.stop(grace=events.EVICTION_GRACE_SECONDS, override=broken)
                deadline = self.in_background(self._watch_deadline())
                await self._sync_with_retry()
                deadline.cancel()
            await self.pool.claims.unprepare(self.uid, self._event)
            self.apply(events.update_facts, finished=True)
            self._starting.end(self.uid)
            await self._release()
            self._reports.schedule()
            await self._reports.wait_until_sent()
            await self._volume_manager.release(self.pod)
        except RuntimeExited:
            log.info("pod %s: the runtime has ended", self.path)

    async def _refusal(self) -> tuple[str, str] | None:
        """Explain why the node does not admit the pod, by reason and message; None if it does."""
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
        if self.record.is_new:
            self._report_unsupported(self.pod)
        delay = RETRY_SECONDS
        while True:
            try:
                await self._run_lifecycle()
                return
            except RuntimeExited:
                raise
            except Exception as error:  # noqa: BLE001 - a bug in one pod's life must show on that pod
                if isinstance(error, ExceptionGroup) and error.subgroup(RuntimeExited):
                    raise RuntimeExited("the runtime has ended") from error
                log.exception("pod %s", self.path)
                self._event("FailedSync", f"error syncing pod, trying again: {error!r}", warning=True)
                for task in self._auxiliary or ():
                    task.cancel()
                self._auxiliary = None
                await self.pause(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    def _report_unsupported(self, pod: Mapping[str, Any]) -> None:
        plain = self.runtime.host.plain
        unsupported = (unsupported_fields_in_plain_mode if plain else unsupported_fields)(pod)
        host_pid = pod["spec"].get("hostPID") and not plain
        if host_pid and "pid" not in self.runtime.ids.shared_with_node(self.pod):
            unsupported.append(f"hostPID is not supported: {OWN_PROCESSES}")
        if unsupported:
            self._event("UnsupportedFields", "; ".join(unsupported), warning=True)

    async def _run_lifecycle(self) -> None:
        if await self._prepare_with_retry():
            self._auxiliary = [self.in_background(worker.run()) for worker in self._workers(EPHEMERAL)]
            while True:
                sidecars: list[asyncio.Task[None]] = []
                if await self._initialise(sidecars):
                    for worker in self._workers(MAIN):
                        # One after the other, since a postStart hook holds up what comes after it.
                        if self.record.is_active:
                            await worker.start()
                    self.in_background(self._mark_started())
                    await run_together(worker.run(started=True) for worker in self._workers(MAIN))
                if self.record.stopping or not self.record.restarting:
                    break
                await asyncio.gather(*sidecars)
                self.apply(events.removed)
                await self.pause(RESTART_SECONDS)
                self.apply(events.update_facts, restarting=False)
                self._reports.schedule()
        await self.stop(grace=self.record.grace)
        await asyncio.gather(*self._auxiliary or ())
        # Containers of a previous kubelet, if the pod was stopped before its lifecycle continued.
        await run_together(self.containers[name].run() for name in self.processes)

    def _workers(self, kind: str) -> list[ContainerWorker]:
        return [self.containers[name] for name, known in self.record.containers.items() if known.kind == kind]

    async def _mark_started(self) -> None:
        await self._reports.wait_until_sent()
        self._starting.end(self.uid)

    async def _initialise(self, sidecars: list[asyncio.Task[None]]) -> bool:
        """Run init containers in order, and start sidecars; False if the pod ends or all restart."""
        states = [worker.container.state for worker in self._workers(MAIN)]
        initialised = any(state and state.state != "waiting" for state in states)
        for worker in self._workers(INIT):
            if is_sidecar(worker.container.spec):
                sidecars.append(self.in_background(worker.run()))
                assert self._auxiliary is not None
                self._auxiliary.append(sidecars[-1])
                if not initialised:
                    await self.until(worker.has_started)
                continue
            await worker.run()
            state = worker.container.state
            if not self.record.is_active or state is None or state.exit_code != 0:
                return False
        return self.record.is_active

    # The pod's sandbox and volumes.

    async def _prepare(self) -> None:
        """Create the sandbox and the volumes; idempotent."""
        in_node, pool = self.pod["spec"].get("hostNetwork"), self.pool
        own = pool.settings.address if in_node else pool.address(self.uid, requested=self.record.address)
        self.apply(events.update_facts, address=own)
        if pool.directory.is_mounted_by(self.pod):
            pool.claims.open(self.node.api)
            await pool.devices.open()
        await check_runtime_class(self.node.api, self.pod)
        await pool.claims.prepare(self.node.api, self.pod)
        fresh = self.record.is_new
        sandbox = self._sandboxes.create(self.pod, node=self.node, address=own, fresh=fresh)
        _, volumes = await asyncio.gather(sandbox, self._volume_manager.prepare(self.pod))
        self.apply(events.update_facts, volumes=volumes)

    async def _prepare_with_retry(self) -> bool:
        """Create sandbox and volumes, reporting failures as Events; False if the pod is stopped before."""
        delay = RETRY_SECONDS
        while not self.record.stopping:
            try:
                await self._prepare()
                return True
            except (VolumeError, ClaimPreparationError) as error:
                self._event(error.reason, error.message, warning=True)
            except RuntimeCallError as error:
                message = f"Failed to create pod sandbox: {error.message}"
                self._event("FailedCreatePodSandBox", message, warning=True)
            except HostnameError as error:
                self._event("FailedCreatePodSandBox", str(error), warning=True)
            except ApiError as error:
                self._event("FailedMount", str(error), warning=True)
            self._reports.schedule()
            await self.pause(delay)
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)
        return False

    async def _release(self) -> None:
        """Remove the pod's namespaces, and release its address and resources."""
        if self.record.address:
            await self._sandboxes.remove(self.uid)
        self._release_resources()
        self.pool.release(self.uid)

    def _release_resources(self) -> None:
        """Release the pod's devices and resources, before its end is reported and another pod is bound."""
        self.apply(events.update_facts, devices=self.record.devices or self._devices())
        self.pool.devices.release(self.uid)
        self.pool.remove(self.uid)

    # The pod's end.

    async def _watch_deadline(self) -> None:
        """End the pod at its ``activeDeadlineSeconds``, which an update may set or shorten."""
        while (end := self.record.deadline) is None or end > time.time():
            await self._keep_deadline(end)
        self._event(*DEADLINE_EXCEEDED[1:])
        await self.stop(grace=self.record.grace, override=DEADLINE_EXCEEDED)

    async def _keep_deadline(self, end: float | None) -> None:
        seconds = None if end is None else end - time.time()
        await self.until(lambda record: record.deadline != end, seconds=seconds)

    async def _delete(self, grace: float) -> None:
        """Stop, report the end, and let the API delete the pod."""
        if not self.record.finished:
            await self.stop(grace=grace)
        if self._task:
            await asyncio.wait([self._task])
        if not grace:
            return  # the deletion was forced, or the pod had ended: the API server removes it by itself
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        try:
            await self.node.api.delete(self.path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                log.warning("delete %s: %s", self.path, error)

    # The pod's status.

    def status(self) -> dict[str, Any]:
        record = self.record
        if record.rejected:
            return rejected_status(record.pod, override=record.override, start_time=record.start_time)
        has_run = any(state.container_id for state in record.states.values())
        status = pod_status(
            record.pod,
            records=record.reported_states,
            resizes=[] if record.finished else list(record.resizes.values()),
            # As with a kubelet, which mounts the volumes before it creates the sandbox.
            pod_ip=record.address if record.volumes is not None or has_run else None,
            host_ip=self.pool.settings.address,
            start_time=record.start_time,
            now=time.time(),
            override=record.override,
            terminal=record.finished,
            restarting=record.restarting,
            devices=record.devices or self._devices(),
        )
        if status["phase"] in TERMINAL:
            self._release_resources()
        return status

    def _devices(self) -> dict[str, list[dict[str, Any]]]:
        devices, claims = self.pool.devices, self.pool.claims
        return {
            name: devices.statuses(self.uid, name) + claims.statuses(self.pod, name)
            for name in self.containers
        }

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.perform(EmitEvent(reason, message, warning=warning))
