"""The life of one pod on a virtual node: sandbox, volumes, containers, restarts, end, deletion.

One task a pod walks through it; what happened is kept as container records, from which ``status.py`` makes
the PodStatus. What survives this process is elsewhere: the containers at the spawner, the rest in the API.

Not here: a container's order (``launching.py``), going on after a restart (``adoption.py``).
"""

import asyncio
import logging
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from localkube.node import records
from localkube.node.api import ApiError
from localkube.node.containers import network_files
from localkube.node.environment import ConfigError
from localkube.node.launching import container_order
from localkube.node.nodes import NodePool, is_ready, memory_limit
from localkube.node.orders import Refused, SpawnerGone, close_all
from localkube.node.processes import Process
from localkube.node.records import ContainerRecord, Exit
from localkube.node.reports import StatusReports
from localkube.node.restarts import backoff, container_should_restart, crashes, is_sidecar, waiting_to_restart
from localkube.node.runtime import Runtime
from localkube.node.status import DEADLINE_EXCEEDED, TERMINAL, pod_status
from localkube.node.tasks import start_task
from localkube.node.volumes import Volume, VolumeError

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
LONGEST_RETRY_SECONDS = 10.0


class PodWorker:
    """Brings one pod to what its specification says, and reports how it is."""

    def __init__(self, pod: Mapping[str, Any], *, pool: NodePool, runtime: Runtime) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.records: dict[str, ContainerRecord] = {}
        self.processes: dict[str, Process] = {}
        self.address: str | None = None
        self.finished = False
        self._pool = pool
        self._runtime = runtime
        self._volumes: dict[str, Volume] = {}
        self._stopping = asyncio.Event()
        self._override: tuple[str, str, str] | None = None
        self._reports = StatusReports(
            runtime, path=self._path, pod=lambda: self.pod, status=self._status, answered=self._answered
        )
        self._task: asyncio.Task | None = None
        self._crashes: dict[str, int] = {}
        self._background: set[asyncio.Task] = set()
        reported = pod.get("status", {}).get("startTime")
        self._early: dict[str, dict[str, Any]] = {}
        self._deleting: float | None = None
        self._start_time = datetime.fromisoformat(reported).timestamp() if reported else time.time()

    # What the agent calls.

    def start(self) -> None:
        """Begin, or go on where an earlier agent was."""
        self._task = start_task(self._run(), name=f"pod {self._path}")

    def changed(self, pod: Mapping[str, Any]) -> None:
        """Take a newer version of the pod's object."""
        self.pod = pod
        if not self.finished and self.processes and not is_ready(pod):
            # The node controller says so of every pod of a node that was silent for a while.
            self._reports.soon()
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
            if self._deleting is None or grace < self._deleting:
                self._deleting = grace
                self._in_background(self._delete(grace))

    def exited(self, entry: dict[str, Any]) -> None:
        """Take the spawner's word on one of this pod's containers."""
        for process in self.processes.values():
            if process.identity == entry["id"]:
                process.exited(entry)
                return
        # The end of a short process can overtake the answer to the order that started it.
        self._early[entry["id"]] = entry

    async def discard(self) -> None:
        """Leave nothing: the object is gone from the API."""
        await self.stop(grace=0)
        if self._task:
            await asyncio.wait([self._task])
        await self._release()
        await self._runtime.orders.ask("forget_pod", pod=self.uid)
        self._runtime.events.forget(self.uid)
        await self._runtime.volumes.remove(self.uid)
        for directory in self._runtime.directories(self.uid):
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    def abandon(self) -> None:
        """Look after the pod no more, and report nothing: its node has lost its power."""
        for task in (self._task, *self._background):
            if task:
                task.cancel()
        self._reports.abandon()
        for process in self.processes.values():
            self._runtime.memory.remove(process.identity)
            process.close()
        self._pool.release(self.uid)

    async def stop(self, *, grace: float, override: tuple[str, str, str] | None = None) -> None:
        """End all containers: SIGTERM, ``grace`` seconds, SIGKILL of the whole process tree."""
        first = not self._stopping.is_set()
        if override and first:
            self._override = override
        self._stopping.set()
        running = [process for process in self.processes.values() if process.running]
        if first and grace > 0:
            await self._signal(running, signal.SIGTERM)
        waits = [asyncio.create_task(process.wait()) for process in running]
        if waits:
            _, late = await asyncio.wait(waits, timeout=grace)
            if late:
                await self._signal(running, signal.SIGKILL)
                await asyncio.wait(late)

    # Its life.

    async def _run(self) -> None:
        try:
            if self.pod.get("status", {}).get("phase") not in TERMINAL:
                deadline = self._in_background(self._watch_deadline())
                await self._live()
                deadline.cancel()
            self.finished = True
            await self._release()
            self._reports.soon()
            await self._reports.sent()
        except SpawnerGone:
            log.info("pod %s: the site has ended", self._path)

    async def _live(self) -> None:
        if not await self._prepare():
            return
        sidecars: list[asyncio.Task] = []
        if await self._initialise(sidecars):
            async with asyncio.TaskGroup() as group:
                for container in self.pod["spec"]["containers"]:
                    group.create_task(self._keep(container))
        if sidecars:
            await self.stop(grace=self._grace)
            await asyncio.wait(sidecars)

    async def _prepare(self) -> bool:
        """Make sandbox and volumes; False when the pod is stopped before that succeeds."""
        if not await self._until_done(self._take_address):
            return False
        meta, spec = self.pod["metadata"], self.pod["spec"]
        hostname = spec.get("hostname") or meta["name"][:63]
        subdomain = spec.get("subdomain", "")
        directory = self._runtime.fleeting_directory(self.uid)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        network_files(
            directory,
            hostname=hostname,
            address=self.address,
            subdomain=subdomain,
            namespace=meta["namespace"],
            pod=self.pod,
        )
        if spec.get("hostNetwork"):
            message = "hostNetwork is not kept on a local node: the pod has a network of its own"
            self._event("NotKept", message, warning=True)
        return await self._until_done(lambda: self._sandbox(hostname))

    async def _take_address(self) -> None:
        self.address = self._pool.address(self.uid, wanted=self.address)

    async def _sandbox(self, hostname: str) -> None:
        network = self._runtime.site.pod_network()
        sandbox = self._runtime.orders.ask(
            "sandbox", pod=self.uid, hostname=hostname, address=self.address, **network
        )
        _, self._volumes = await asyncio.gather(sandbox, self._runtime.volumes.prepare(self.pod))

    async def _until_done(self, attempt: Callable[[], Awaitable[None]]) -> bool:
        delay = RETRY_SECONDS / 4
        while not self._stopping.is_set():
            try:
                await attempt()
                return True
            except VolumeError as error:
                self._event(error.reason, error.message, warning=True)
            except Refused as error:
                self._event("FailedCreatePodSandBox", error.message, warning=True)
            except ApiError as error:
                self._event("FailedMount", str(error), warning=True)
            self._reports.soon()
            if await self._pause(delay):
                break
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)
        return False

    async def _initialise(self, sidecars: list[asyncio.Task]) -> bool:
        """Run the init containers one after the other; False when the pod ends with them.

        Those that keep running beside the others are added to ``sidecars``.
        """
        for container in self.pod["spec"].get("initContainers") or []:
            if is_sidecar(container):
                await self._start(container)
                sidecars.append(self._in_background(self._keep(container)))
                continue
            await self._keep(container)
            if self._stopping.is_set() or self.records[container["name"]].exit_code != 0:
                return False
        return not self._stopping.is_set()

    async def _keep(self, container: Mapping[str, Any]) -> None:
        """Start a container, and start it again for as long as its restart policy says so."""
        name = container["name"]
        while not self._stopping.is_set():
            record = self.records.get(name)
            if record is None or record.state == "waiting":
                await self._start(container)
            if name in self.processes:
                if self._stopping.is_set():
                    await self._signal([self.processes[name]], signal.SIGKILL)
                self._ended(container, await self.processes[name].wait())
                del self.processes[name]
            record = self.records[name]
            if self._stopping.is_set():
                return
            if record.state == "waiting":
                await self._pause(RETRY_SECONDS)
            elif container_should_restart(self.pod, container, record.exit_code):
                await self._back_off(record)
            else:
                return

    async def _back_off(self, record: ContainerRecord) -> None:
        ran_for = record.finished_at - (record.started_at or record.finished_at)
        self._crashes[record.name] = crashes(self._crashes.get(record.name, 0), ran_for=ran_for)
        delay = backoff(self._crashes[record.name])
        waiting = waiting_to_restart(self.pod, record, delay)
        if not delay:
            # It is about to start: nobody should read of a back-off in between.
            waiting = replace(waiting, reason="ContainerCreating", message="")
        self.records[record.name] = waiting
        if delay:
            self._event("BackOff", f"Back-off restarting failed container {record.name}", warning=True)
            self._reports.soon()
            await self._pause(delay)

    async def _start(self, container: Mapping[str, Any]) -> None:
        """Start once; what went wrong becomes the record."""
        name = container["name"]
        count, last = records.next_run(self.records.get(name))
        identity = f"{self.uid}.{name}.{count}"
        try:
            order = await container_order(self, container, identity=identity, restart=count)
            entry, descriptors = await self._runtime.orders.ask("run", **order)
        except (ConfigError, VolumeError) as error:
            self._wait(name, error.reason, error.message, count, last)
        except ApiError as error:
            self._wait(name, "CreateContainerConfigError", str(error), count, last)
        except Refused as error:
            if error.stage != "exec":
                self._wait(name, "CreateContainerError", error.message, count, last)
                return
            self._event("Failed", f"Error: {error.message}", warning=True)
            self.records[name] = records.refused(name, identity, error.message, time.time(), count, last)
            self._reports.soon()
        else:
            self.running(name, entry, descriptors, count=count, last=last)
            how = " from the warm parent" if entry.get("warm") else ""
            self._event("Started", f"Container {name} started{how}")

    def running(
        self,
        name: str,
        entry: dict[str, Any],
        descriptors: list[int],
        *,
        count: int,
        last: ContainerRecord | None,
    ) -> None:
        """Take over a process that the spawner has started."""
        if name in self.processes:
            close_all(descriptors)
            return
        path = self._runtime.log_path(self.uid, name, count)
        process = Process(entry, descriptors, log_path=path, files=self._runtime.logs)
        if early := self._early.pop(process.identity, None):
            process.exited(early)
        self.processes[name] = process
        if limit := memory_limit(self.pod, name):
            self._runtime.memory.add(process.identity, pid=process.pid, limit=limit)
        self.records[name] = records.running(name, process.identity, process.started, count, last)
        self._reports.soon()

    def _wait(self, name: str, reason: str, message: str, count: int, last: ContainerRecord | None) -> None:
        self._event("Failed", f"Error: {message}", warning=True)
        self.records[name] = records.waiting(name, reason, message, count, last)
        self._reports.soon()

    def _ended(self, container: Mapping[str, Any], result: Exit) -> None:
        record = self.records[container["name"]]
        self._runtime.memory.remove(record.container_id)
        message = self._runtime.termination_message(self.uid, container, record.restart_count, result.code)
        out_of_memory = record.container_id in self._runtime.out_of_memory
        self._runtime.out_of_memory.discard(record.container_id)
        self.records[record.name] = records.ended(
            record, result, message=message, out_of_memory=out_of_memory
        )
        self._reports.soon(ended=record.container_id)

    # Its end.

    async def _watch_deadline(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        await asyncio.sleep(max(0.0, self._start_time + seconds - time.time()))
        self._event(*DEADLINE_EXCEEDED[1:])
        await self.stop(grace=self._grace, override=DEADLINE_EXCEEDED)

    async def _delete(self, grace: float) -> None:
        """Stop, report the end, and let the API forget the pod."""
        if not self.finished:
            self._event("Killing", "Stopping the pod's containers")
            await self.stop(grace=grace)
        if self._task:
            await asyncio.wait([self._task])
        if not grace:
            # It was forced, or had ended already: the API forgets it by itself.
            return
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        try:
            await self._runtime.api.delete(self._path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                log.warning("delete %s: %s", self._path, error)

    async def _release(self) -> None:
        if self.address:
            await self._runtime.orders.ask("remove", pod=self.uid)
            self._pool.release(self.uid)

    # Its status.

    def _answered(self, pod: Mapping[str, Any]) -> None:
        self.pod = pod

    def _status(self) -> dict[str, Any]:
        main, init = records.by_kind(self.pod, self.records)
        return pod_status(
            self.pod,
            records=main,
            init_records=init,
            pod_ip=self.address,
            host_ip=self._pool.settings.address,
            start_time=self._start_time,
            now=time.time(),
            override=self._override,
            terminal=self.finished,
        )

    # Small things.

    @property
    def _path(self) -> str:
        meta = self.pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    @property
    def _grace(self) -> float:
        return self.pod["spec"].get("terminationGracePeriodSeconds", 30)

    @property
    def pool(self) -> NodePool:
        return self._pool

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def volumes(self) -> dict[str, Volume]:
        return self._volumes

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._runtime.events.record(self.pod, reason, message, warning=warning)

    async def _pause(self, seconds: float) -> bool:
        """Wait; True when the pod is being stopped."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _signal(self, processes: list[Process], number: int) -> None:
        for process in processes:
            await self._runtime.orders.ask("kill", id=process.identity, signal=int(number))

    def _in_background(self, work: Any) -> asyncio.Task:
        task = start_task(work, name=f"background {self._path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
