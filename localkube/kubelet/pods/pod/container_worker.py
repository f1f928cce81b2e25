"""Runs one container: starts, probes and terminates its processes, or attaches to them, and applies events.

``events.py`` decides what follows from an event.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localkube.errors import ApiError
from localkube.kubelet.containers import termination
from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.containers.process import Process
from localkube.kubelet.pods.container_spec import ContainerStart
from localkube.kubelet.pods.pod import events
from localkube.kubelet.pods.pod.actions import EmitEvent
from localkube.kubelet.pods.pod.driver import PodDriver
from localkube.kubelet.pods.pod.record import Container, PodRecord
from localkube.kubelet.pods.pod.resize import differences
from localkube.kubelet.probes.handlers import HandlerError, ProbeResult, ProbeTarget
from localkube.kubelet.probes.prober import Prober
from localkube.kubelet.status.container_state import EPHEMERAL, HOST_IMAGE, ContainerRecord, next_run
from localkube.kubelet.volumes.volume_manager import VolumeError
from localkube.runtime.client import RuntimeCallError
from localkube.runtime.container_spec import UserSpec
from localkube.runtime.messages import close_all
from localkube.tasks import wait_for_first


class ContainerWorker:
    """Runs one container as its specification says.

    Attributes:
        process: The container's process, until its end is recorded.
    """

    def __init__(self, pod: PodDriver, name: str) -> None:
        self.name, self._pod = name, pod
        self.process: Process | None = None
        self._probes: Prober | None = None
        self._ending: Process | None = None
        self._stop_signal = ""

    @property
    def container(self) -> Container:
        return self._pod.record.containers[self.name]

    async def run(self, *, started: bool = False) -> None:
        """Run the container until its restart policy ends it; ``started`` skips the first start."""
        pod = self._pod
        while True:
            if not started and not pod.record.stopping:
                await self.start()
            started = False
            if process := self.process:
                if pod.record.stopping and self._ending is not process:
                    # It was started while the other containers were being terminated.
                    await pod.kill(process, signal.SIGKILL)
                await self._await_exit(process)
            pod.apply(events.run_over, self.name)
            delay = self.container.delay
            if delay is None:
                return
            if delay:
                await pod.until(self._is_due, seconds=delay)

    def _is_due(self, record: PodRecord) -> bool:
        return record.stopping or record.containers[self.name].is_due

    def has_started(self, record: PodRecord) -> bool:
        """Check whether the next containers no longer wait for this one: it has started, or the pod ends."""
        state = record.containers[self.name].state
        return not record.is_active or (state is not None and state.started)

    def resize(self) -> bool:
        """Give the running container the resources of its specification; False if that needs a restart."""
        container, process, pod = self.container, self.process, self._pod
        state, spec = container.state, container.spec
        if container.kind == EPHEMERAL or process is None or state is None or state.state != "running":
            return not container.resizing
        differing = differences(state.resources or {}, spec.get("resources") or {})
        rules = spec.get("resizePolicy") or []
        restarts = {rule["resourceName"] for rule in rules if rule["restartPolicy"] == "RestartContainer"}
        if differing & restarts:
            pod.apply(events.resize_restarts, self.name)
            return False
        if differing:
            first_core = pod.node.pool.settings.first_core
            pids = {"pid": process.pid, "forked_from": process.forked_from}
            pod.runtime.limits.resize(
                pod.record.pod, spec, identity=process.identity, first_core=first_core, **pids
            )
            pod.apply(events.resized, self.name)
        return True

    async def stop(self, *, grace: float, message: str = "", after: list[Process] | None = None) -> None:
        """Terminate the container within ``grace`` seconds; a second call can only shorten the time.

        Args:
            grace: Seconds for hook and signal; with 0 the container is killed.
            message: The message of the Event, by default that the container is stopped.
            after: Processes that must end before the signal is sent.
        """
        process = self.process
        if process is None or not process.running:
            return
        self._stop_probes("startup", "liveness")
        if self._ending is process:
            deadline = asyncio.get_running_loop().time() + grace
            await termination.terminate_by(process, deadline, kill=self._pod.kill)
            return
        self._ending = process
        self.event("Killing", message or f"Stopping container {self.name}")
        lifecycle = self.container.spec.get("lifecycle") or {}
        await termination.terminate(
            process,
            grace=grace,
            kill=self._pod.kill,
            hook=self._pre_stop if lifecycle.get("preStop") else None,
            after=after or (),
            stop_signal=termination.signal_number(lifecycle.get("stopSignal") or self._stop_signal),
        )

    def abandon(self) -> None:
        """Stop the probes, and leave the process to the runtime."""
        self._stop_probes()
        if self.process:
            self._pod.runtime.limits.ended(self.process.identity)
            self.process.close()

    # The container's start.

    async def start(self) -> None:
        """Start the container once, with its postStart hook, unless it runs or has ended for good."""
        pod, spec, state, runtime = self._pod, self.container.spec, self.container.state, self._pod.runtime
        if self.process or (state and state.state != "waiting"):
            return
        count, last = next_run(state)
        uid = pod.record.uid
        identity = f"{uid}.{self.name}.{count}"
        pod.apply(events.starting, self.name)
        if count:
            pod.in_background(runtime.files.remove_former_runs(uid, self.name, count))
        try:
            container_start = ContainerStart(
                runtime,
                pod.record.pod,
                spec,
                node=pod.node,
                address=pod.record.address or "",
                volumes=pod.record.volumes or {},
                restart=count,
                target=self._target_identity(),
            )
            request, image = await container_start.request()
            entry, descriptors = await runtime.client.call("run", id=identity, pod=uid, **vars(request))
        except (ConfigError, VolumeError) as error:
            permanent = isinstance(error, ConfigError) and error.permanent
            pod.apply(events.refused, self.name, error.reason, error.message, permanent=permanent)
        except ApiError as error:
            pod.apply(events.refused, self.name, "CreateContainerConfigError", error.message)
        except RuntimeCallError as error:
            runtime.limits.ended(identity)
            await runtime.files.remove_writable_layer(uid, self.name, count)
            if error.stage == "exec":
                pod.apply(events.failed, self.name, identity, error.message, now=time.time())
            else:
                pod.apply(events.refused, self.name, "CreateContainerError", error.message)
        else:
            process = self._attach(entry, descriptors, count=count)
            how = " by the forkserver" if process.forked_from else ""
            self.event("Started", f"Container {self.name} started{how}")
            hook_done = await self._post_start(process)
            self._stop_signal = image.stop_signal
            state = _running(process, self.name, count, last, spec)
            state = replace(state, image_id=image.id, user=_user(request.spec.process.user))
            self._mark_running(state, hook_done=hook_done)

    def _attach(self, entry: dict[str, Any], descriptors: list[int], *, count: int) -> Process:
        """Attach to a process that the runtime has started."""
        if self.process:
            close_all(descriptors)
            return self.process
        pod, runtime, uid = self._pod, self._pod.runtime, self._pod.record.uid
        path = runtime.files.log_path(uid, self.name, count)
        self.process = process = Process(entry, descriptors, log_path=path, files=runtime.logs)
        if early := pod.record.early.get(process.identity):
            process.set_exit(early)
        pod.apply(events.attached, self.name, process.identity, exited=not process.running)
        pids = {"pid": process.pid, "forked_from": process.forked_from}
        runtime.limits.started(pod.record.pod, self.name, identity=process.identity, **pids)
        return process

    def reattach(self, entry: dict[str, Any], descriptors: list[int], *, count: int) -> None:
        """Attach to a process of a previous kubelet, and keep that kubelet's probe results."""
        before = self.container.state
        process = self._attach(entry, descriptors, count=count)
        state = _running(process, self.name, count, before.last if before else None, self.container.spec)
        if before and before.container_id == process.identity:
            state = replace(
                state,
                started=before.started,
                ready=before.ready,
                image=before.image or state.image,
                image_id=before.image_id or state.image_id,
                resources=before.resources,
                user=before.user,
            )
        self._stop_signal = self._pod.runtime.images.stop_signal(state.image)
        self._mark_running(state, hook_done=True)

    def _mark_running(self, state: ContainerRecord, *, hook_done: bool) -> None:
        """Record that the container runs, and start its probes."""
        self._pod.apply(events.running, self.name, state, hook_done=hook_done)
        known = self.container.state
        if hook_done and known and not self._pod.record.stopping:
            self._probes = Prober(self.container.spec, known, owner=self)
            self._probes.start()

    async def _post_start(self, process: Process) -> bool:
        """Run the postStart hook; if it fails, terminate the container and return False."""
        action = (self.container.spec.get("lifecycle") or {}).get("postStart")
        if not action:
            return True
        work = self._pod.runtime.handlers.hook(action, self._target(process))
        hook = await wait_for_first(work, process.wait())
        done = not hook.cancelled() and hook.exception() is None
        with contextlib.suppress(asyncio.CancelledError, HandlerError):
            hook.result()
        if not done and not self._pod.record.stopping:
            # The hook's output may be a secret, so the Event does not contain it.
            self.event("FailedPostStartHook", "PostStartHook failed", warning=True)
            await self.stop(grace=self._pod.record.grace, message="FailedPostStartHook")
        return done

    # Methods for the probes.

    async def probe(self, spec: Mapping[str, Any]) -> ProbeResult:
        """Run the handler of a v1.Probe once."""
        assert self.process is not None
        timeout = spec.get("timeoutSeconds", 1)
        return await self._pod.runtime.handlers.probe(spec, self._target(self.process), timeout=timeout)

    def probed(self, *, started: bool, ready: bool) -> None:
        self._pod.apply(events.probed, self.name, started=started, ready=ready)

    def unhealthy(self, kind: str) -> None:
        self._pod.apply(events.unhealthy, self.name, kind)

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        about = f"spec.{self.container.kind}{{{self.name}}}"
        self._pod.perform(EmitEvent(reason, message, warning=warning, about=about))

    def _stop_probes(self, *kinds: str) -> None:
        if self._probes:
            self._probes.stop(*kinds)

    # The container's end.

    async def _pre_stop(self) -> None:
        try:
            action = self.container.spec["lifecycle"]["preStop"]
            assert self._ending is not None
            await self._pod.runtime.handlers.hook(action, self._target(self._ending))
        except HandlerError:
            self.event("FailedPreStopHook", "PreStopHook failed", warning=True)

    async def _await_exit(self, process: Process) -> None:
        """Wait until the run ends; its writable layer is removed in the background."""
        result = await process.wait()
        pod, runtime, state = self._pod, self._pod.runtime, self.container.state
        assert state is not None
        self._stop_probes()
        self._ending = None
        message = runtime.files.termination_message(
            pod.record.uid, self.container.spec, state.restart_count, result.code
        )
        over = runtime.limits.ended(state.container_id) and result.code != 0
        self.process = None
        pod.apply(events.ended, self.name, result, message=message, out_of_memory=over)
        pod.in_background(self._clear(state.restart_count))

    async def _clear(self, restart: int) -> None:
        await self._pod.runtime.files.remove_writable_layer(self._pod.record.uid, self.name, restart)
        self._pod.apply(events.update_facts, clearing=self._pod.record.clearing - 1)

    # Helpers.

    def _target_identity(self) -> str:
        """Find the process of the container that an ephemeral container targets; empty if none."""
        name = self.container.spec.get("targetContainerName") or ""
        target = self._pod.record.containers.get(name)
        if name and (target is None or not target.is_running):
            raise ConfigError(f"unable to find target container {name}")
        return target.process if target else ""

    def _target(self, process: Process) -> ProbeTarget:
        return ProbeTarget(process.identity, self.container.spec, self._pod.record.address or "")


def _user(user: UserSpec) -> dict[str, Any]:
    groups = list(user.additional_gids)
    linux = {"uid": user.uid, "gid": user.gid} | ({"supplementalGroups": groups} if groups else {})
    return {"linux": linux}


def _running(
    process: Process, name: str, count: int, last: ContainerRecord | None, spec: Mapping[str, Any]
) -> ContainerRecord:
    definition = {"image": spec["image"], "resources": spec.get("resources") or {}}
    state = ContainerRecord(name, "running", started_at=process.started, restart_count=count, last=last)
    return replace(state, container_id=process.identity, image_id=HOST_IMAGE, **definition)
