"""The lifecycle of one container: started, probed, restarted, ended.

Its states are kept as records in the pod's ``records``, from which ``status/pod_status.py`` computes the
PodStatus.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from localkube.errors import ApiError
from localkube.kubelet.containers import termination as stopping
from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.containers.process import Process
from localkube.kubelet.images.image_manager import IMAGE_BACK_OFF, IMAGE_REASONS
from localkube.kubelet.pods.container_spec import ContainerStart
from localkube.kubelet.pods.pod_state import PodState
from localkube.kubelet.pods.resize import changed
from localkube.kubelet.probes.handlers import HandlerError, ProbeResult, ProbeTarget
from localkube.kubelet.probes.prober import Prober
from localkube.kubelet.status import container_state as records
from localkube.kubelet.status.container_state import EPHEMERAL, INIT, ContainerExit, ContainerRecord
from localkube.kubelet.status.restart_policy import (
    RESTART_ALL,
    backoff,
    config_backoff,
    container_should_restart,
    crashes,
    is_sidecar,
    restart_action,
    restarts_after_probe,
    waiting_to_restart,
)
from localkube.kubelet.volumes.volume_manager import VolumeError
from localkube.runtime.client import RuntimeCallError
from localkube.runtime.container_spec import UserSpec
from localkube.runtime.messages import close_all
from localkube.tasks import wait_for_first

START_FAILED = 128


class ContainerWorker:
    """Runs one container as its specification says.

    Args:
        kind: The list of the PodSpec that it is in.
    """

    def __init__(self, pod: PodState, container: Mapping[str, Any], *, kind: str) -> None:
        self.container = container
        self.name: str = container["name"]
        # Set while a run of it has started fully: its hook is done, its startup probe has passed.
        self.started = asyncio.Event()
        self._pod, self._kind = pod, kind
        self._init, self._ephemeral = kind == INIT, kind == EPHEMERAL
        self._crashes = 0
        self._refusals, self._permanent = 0, False  # starts that its configuration did not allow
        self._probes: Prober | None = None
        self._ending: Process | None = None
        # Its run was ended in order to start it again, whatever its restart policy says.
        self._replaced = False
        # It is started again to get other resources, and does not run yet.
        self._resizing = False
        self._updated = asyncio.Event()
        self._stop_signal = ""

    @property
    def process(self) -> Process | None:
        return self._pod.processes.get(self.name)

    @property
    def record(self) -> ContainerRecord | None:
        return self._pod.records.get(self.name)

    async def keep(self, *, started: bool = False) -> None:
        """Run it until its restart policy ends it; ``begun`` skips the first start."""
        pod = self._pod
        while True:
            if not started and not pod.stopping.is_set():
                await self.begin()
            started = False
            if process := self.process:
                if pod.stopping.is_set() and self._ending is not process:
                    # It was started while the others were asked to end.
                    await pod.kill(process, signal.SIGKILL)
                result = await process.wait()
                self._ended(result)
                del pod.processes[self.name]
                if self.record:
                    self._clear(self.record.restart_count)
            record = self.record
            if record is None or pod.stopping.is_set() or pod.restarting.is_set():
                return
            ended = record.state == "terminated" and not self._replaced
            if ended and restart_action(self.container, record.exit_code) == RESTART_ALL:
                pod.restart_all()
                return
            if record.state == "waiting":
                await self._pause(config_backoff(self._refusals, permanent=self._permanent))
            elif self._restarts(record):
                await self._back_off(record)
            else:
                return

    def _clear(self, restart: int) -> None:
        """Remove what a run that has ended wrote; its status and the next run do not wait for it."""
        pod = self._pod
        pod.clearing += 1

        async def clear() -> None:
            await pod.runtime.files.remove_writable_layer(pod.uid, self.name, restart)
            pod.clearing -= 1
            if not pod.processes and not pod.clearing:
                pod.quiet.set()

        pod.in_background(clear())

    async def begin(self) -> None:
        """Start it once, with its postStart hook, unless it runs or has ended for good."""
        if self.process is None and (self.record is None or self.record.state == "waiting"):
            await self._start()
            self._report_replaced()

    def update(self, container: Mapping[str, Any]) -> None:
        """Take a newer version of its specification; a run with another image is replaced.

        As in the kubelet, the back-off belongs to the definition: a new image is tried at once.
        """
        changed, self.container = container["image"] != self.container["image"], container
        if changed:
            self._crashes = self._refusals = 0
            self._updated.set()
            self._check_definition()

    def replace(self, message: str) -> None:
        """End its run and start it again, whatever its restart policy says."""
        if self.process and self.process.running and not self._pod.stopping.is_set():
            self._replaced = True
            self._pod.in_background(self.stop(grace=self._pod.grace, message=message))

    def _check_definition(self) -> None:
        """Replace a run of another image than the specification's."""
        record, is_fixed = self.record, self._ephemeral or (self._init and not self.sidecar)
        if record and record.state == "running" and record.image != self.container["image"] and not is_fixed:
            role, restarts = ("Init container", "") if self._init else ("Container", ", will be restarted")
            self.replace(f"{role} {self.name} definition changed{restarts}")

    def resize(self) -> bool:
        """Give its run the resources of its specification; False when it is started again for that."""
        record, process, pod = self.record, self.process, self._pod
        if self._ephemeral or process is None or record is None or record.state != "running":
            return not self._resizing
        differing = changed(record.resources or {}, self.container.get("resources") or {})
        rules = self.container.get("resizePolicy") or []
        restarts = {rule["resourceName"] for rule in rules if rule["restartPolicy"] == "RestartContainer"}
        if differing & restarts:
            self._resizing = True
            self.replace(f"Container {self.name} resize requires restart")
            return False
        if differing:
            first_core = pod.pool.settings.first_core
            pod.runtime.limits.resize(
                pod.pod, self.container, identity=process.identity, pid=process.pid, first_core=first_core
            )
            pod.records[self.name] = replace(record, **_definition(self.container) | {"image": record.image})
        return True

    async def stop(self, *, grace: float, message: str = "", after: list[Process] | None = None) -> None:
        """End it within ``grace`` seconds; a second call can only shorten the first one's grace.

        Args:
            grace: Seconds for hook and signal; without any it is killed.
            message: Of the event, where there is more to say than that it is stopped.
            after: Processes that it waits for.
        """
        process = self.process
        if process is None or not process.running:
            return
        if self._probes:
            self._probes.stop("startup", "liveness")
        if self._ending is process:
            deadline = asyncio.get_running_loop().time() + grace
            await stopping.end_by(process, deadline, kill=self._pod.kill)
            return
        self._ending = process
        self._event("Killing", message or f"Stopping container {self.name}")
        lifecycle = self.container.get("lifecycle") or {}
        await stopping.end(
            process,
            grace=grace,
            kill=self._pod.kill,
            hook=self._pre_stop if lifecycle.get("preStop") else None,
            after=after or (),
            stop_signal=stopping.signal_number(lifecycle.get("stopSignal") or self._stop_signal),
        )

    def wake(self) -> None:
        """End its back-off."""
        self._updated.set()

    def abandon(self) -> None:
        """Stop its probes."""
        if self._probes:
            self._probes.stop()

    # Its start.

    async def _start(self) -> None:
        """Start it once, and record the result."""
        pod = self._pod
        count, last = records.next_run(self.record)
        identity = f"{pod.uid}.{self.name}.{count}"
        self._replaced = False
        self._updated.clear()
        if count:
            pod.in_background(pod.runtime.files.remove_former_runs(pod.uid, self.name, count))
        definition = _definition(self.container)
        try:
            start = ContainerStart(
                pod.runtime,
                pod.pod,
                self.container,
                node=pod.node,
                address=pod.address or "",
                volumes=pod.volumes,
                restart=count,
                target=self._target_identity(),
            )
            request, image = await start.request()
            entry, descriptors = await pod.runtime.client.call(
                "run", id=identity, pod=pod.uid, **vars(request)
            )
        except (ConfigError, VolumeError) as error:
            self._refusals += 1
            self._permanent = isinstance(error, ConfigError) and error.permanent
            self._wait(error.reason, error.message, count, last)
        except ApiError as error:
            self._wait("CreateContainerConfigError", error.message, count, last)
        except RuntimeCallError as error:
            pod.runtime.limits.ended(identity)
            await pod.runtime.files.remove_writable_layer(pod.uid, self.name, count)
            if error.stage != "exec":
                self._wait("CreateContainerError", error.message, count, last)
                return
            self._event("Failed", f"Error: {error.message}", warning=True)
            pod.records[self.name] = self._refused(identity, error.message, count, last)
            pod.report()
        else:
            self._refusals = 0
            process = self.attach(entry, descriptors, count=count)
            how = " by the forkserver" if entry.get("forked") else ""
            self._event("Started", f"Container {self.name} started{how}")
            hook_done = await self._post_start(process)
            self._stop_signal = image.stop_signal
            record = self._running(process, count, last, definition)
            record = replace(record, image_id=image.id, user=_user(request.spec.process.user))
            self._runs(record, process, hook_done=hook_done)

    def attach(self, entry: dict[str, Any], descriptors: list[int], *, count: int) -> Process:
        """Attach to a process that the runtime has started."""
        pod = self._pod
        if known := self.process:
            close_all(descriptors)
            return known
        path = pod.runtime.files.log_path(pod.uid, self.name, count)
        process = Process(entry, descriptors, log_path=path, files=pod.runtime.logs)
        if early := pod.early.pop(process.identity, None):
            process.set_exit(early)
        pod.processes[self.name] = process
        pod.quiet.clear()
        pod.runtime.limits.started(pod.pod, self.name, identity=process.identity, pid=process.pid)
        return process

    def reattach(
        self,
        entry: dict[str, Any],
        descriptors: list[int],
        *,
        count: int,
        last: ContainerRecord | None,
        before: ContainerRecord | None,
    ) -> None:
        """Attach to a process of a previous kubelet, with that one's probe results."""
        process = self.attach(entry, descriptors, count=count)
        known = before if before and before.container_id == process.identity else None
        record = self._running(process, count, last, _definition(self.container))
        if known:
            record = replace(
                record,
                started=known.started,
                ready=known.ready,
                image=known.image or record.image,
                image_id=known.image_id or record.image_id,
                resources=known.resources,
                user=known.user,
            )
        self._stop_signal = self._pod.runtime.images.stop_signal(record.image)
        self._runs(record, process, hook_done=True)

    def _refused(
        self, identity: str, message: str, count: int, last: ContainerRecord | None
    ) -> ContainerRecord:
        """The record of a run whose command cannot be executed."""
        now = time.time()
        return ContainerRecord(
            self.name,
            "terminated",
            reason="StartError",
            message=message,
            started_at=now,
            finished_at=now,
            exit_code=START_FAILED,
            restart_count=count,
            last=last,
            container_id=identity,
            image_id=records.HOST_IMAGE,
        )

    def _running(
        self, process: Process, count: int, last: ContainerRecord | None, definition: Mapping[str, Any]
    ) -> ContainerRecord:
        return ContainerRecord(
            self.name,
            "running",
            started_at=process.started,
            restart_count=count,
            last=last,
            container_id=process.identity,
            image_id=records.HOST_IMAGE,
            **definition,
        )

    def _runs(self, record: ContainerRecord, process: Process, *, hook_done: bool) -> None:
        """Record that it runs, and start its probes."""
        pod = self._pod
        pod.records[self.name] = record
        self._resizing = False
        if hook_done and not pod.stopping.is_set():
            self._probes = Prober(
                self.container,
                run_probe=lambda spec: self._run_probe(spec, process),
                began=process.started,
                started=record.started,
                ready=record.ready,
                changed=self._probed,
                failed=lambda kind: pod.in_background(self._unhealthy(kind)),
                event=lambda reason, message: self._event(reason, message, warning=True),
            )
            self._probes.start()
            self._probed()
        self._check_definition()
        pod.actuate()
        pod.report()

    async def _post_start(self, process: Process) -> bool:
        """Run the postStart hook; False when it failed, and the container with it."""
        action = (self.container.get("lifecycle") or {}).get("postStart")
        if not action:
            return True
        work = self._pod.runtime.handlers.hook(action, self._target(process))
        hook = await wait_for_first(work, process.wait())
        done = not hook.cancelled() and hook.exception() is None
        with contextlib.suppress(asyncio.CancelledError, HandlerError):
            hook.result()
        if not done and not self._pod.stopping.is_set():
            # What the hook said may be a secret, so that it is not in the event.
            self._event("FailedPostStartHook", "PostStartHook failed", warning=True)
            await self.stop(grace=self._pod.grace, message="FailedPostStartHook")
        return done

    def _wait(self, reason: str, message: str, count: int, last: ContainerRecord | None) -> None:
        waiting = ContainerRecord(
            self.name, "waiting", reason=reason, message=message, restart_count=count, last=last
        )
        if reason == IMAGE_BACK_OFF and waiting == self._pod.records.get(self.name):
            return
        self._event("Failed", f"Error: {reason if reason in IMAGE_REASONS else message}", warning=True)
        self._pod.records[self.name] = waiting
        self._pod.report()

    # What its probes find.

    def _run_probe(self, spec: Mapping[str, Any], process: Process) -> Coroutine[Any, Any, ProbeResult]:
        timeout = spec.get("timeoutSeconds", 1)
        return self._pod.runtime.handlers.probe(spec, self._target(process), timeout=timeout)

    def _probed(self) -> None:
        record, probes = self.record, self._probes
        assert record is not None and probes is not None
        self._pod.records[self.name] = replace(record, started=probes.started, ready=probes.ready)
        if probes.started:
            self.started.set()
        self._pod.report()

    async def _unhealthy(self, kind: str) -> None:
        """End a run whose liveness or startup probe has failed."""
        spec = self.container.get(f"{kind}Probe") or {}
        self._replaced = restarts_after_probe(self._pod.pod, self.container)
        again = ", will be restarted" if self._replaced and not self._init else ""
        role = "Init container" if self._init else "Container"
        grace = spec.get("terminationGracePeriodSeconds", self._pod.grace)
        await self.stop(grace=grace, message=f"{role} {self.name} failed {kind} probe{again}")

    # Its end.

    async def _pre_stop(self) -> None:
        try:
            action = self.container["lifecycle"]["preStop"]
            assert self._ending is not None
            await self._pod.runtime.handlers.hook(action, self._target(self._ending))
        except HandlerError:
            self._event("FailedPreStopHook", "PreStopHook failed", warning=True)

    def _ended(self, result: ContainerExit) -> None:
        pod, runtime, record = self._pod, self._pod.runtime, self.record
        assert record is not None
        self.abandon()
        self._probes, self._ending = None, None
        self.started.clear()
        message = runtime.files.termination_message(
            pod.uid, self.container, record.restart_count, result.code
        )
        over = runtime.limits.ended(record.container_id) and result.code != 0
        if self._replaced and not pod.stopping.is_set() and not pod.restarting.is_set():
            # As from a kubelet, whose pod worker replaces a container before it reports again.
            pod.replaced[self.name] = record
        pod.records[self.name] = records.ended(record, result, message=message, out_of_memory=over)
        if self.name not in pod.replaced:
            pod.report(ended=record.container_id)

    def _report_replaced(self) -> None:
        """Report the end of a run that is started again, and what has come after it."""
        if record := self._pod.replaced.pop(self.name, None):
            self._pod.report(ended=record.container_id)

    def _restarts(self, record: ContainerRecord) -> bool:
        if self._ephemeral:
            return False
        return self._replaced or container_should_restart(self._pod.pod, self.container, record.exit_code)

    async def _back_off(self, record: ContainerRecord) -> None:
        pod = self._pod
        assert record.finished_at is not None
        ran_for = record.finished_at - (record.started_at or record.finished_at)
        self._crashes = crashes(self._crashes, ran_for=ran_for)
        delay = backoff(self._crashes)
        waiting = waiting_to_restart(pod.pod, record, delay)
        if not delay:
            # It is about to start: no back-off should be shown in between.
            waiting = replace(waiting, reason="ContainerCreating", message="")
        pod.records[self.name] = waiting
        if delay:
            self._report_replaced()
            self._event("BackOff", f"Back-off restarting failed container {self.name}", warning=True)
            pod.report()
            await self._pause(delay)

    # Small things.

    def _target_identity(self) -> str:
        """Find the container that an ephemeral one was made to look into."""
        name = self.container.get("targetContainerName") or ""
        target = self._pod.processes.get(name)
        if name and (target is None or not target.running):
            raise ConfigError(f"unable to find target container {name}")
        return target.identity if target else ""

    async def _pause(self, seconds: float) -> None:
        """Sleep until the pod is stopped, or the container has another definition."""
        await wait_for_first(self._pod.stopping.wait(), self._updated.wait(), seconds=seconds)

    @property
    def sidecar(self) -> bool:
        return self._init and is_sidecar(self.container)

    def _target(self, process: Process) -> ProbeTarget:
        return ProbeTarget(process.identity, self.container, self._pod.address or "")

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._pod.event(reason, message, warning=warning, container=f"spec.{self._kind}{{{self.name}}}")


def _user(user: UserSpec) -> dict[str, Any]:
    """The user of a container as its status has it."""
    groups = list(user.additional_gids)
    linux = {"uid": user.uid, "gid": user.gid} | ({"supplementalGroups": groups} if groups else {})
    return {"linux": linux}


def _definition(container: Mapping[str, Any]) -> dict[str, Any]:
    """What a run keeps of the specification that it was started with."""
    return {"image": container["image"], "resources": container.get("resources") or {}}
