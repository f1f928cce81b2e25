"""The kubelet: one asyncio process for all virtual nodes of a cluster.

It registers the nodes, runs the pods that are bound to them as processes, and serves logs, exec, DNS,
Services and volumes. Killed at any moment, it reattaches to running containers when it is restarted.
"""

import asyncio
import contextlib
import itertools
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localkube.api_client import Api, Informer
from localkube.kubelet import control_socket
from localkube.kubelet.config import KubeletConfig
from localkube.kubelet.containers.exec import Executions
from localkube.kubelet.events import EventRecorder
from localkube.kubelet.images.image_programs import Programs
from localkube.kubelet.node_services import NodeServices
from localkube.kubelet.nodes.machines import ISOLATED, STOPPED, NodeFaults, NodeStates, VirtualNode
from localkube.kubelet.nodes.simulation import MARK, Simulation
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.pods.plain_mode import PlainPods
from localkube.kubelet.pods.pod import PodWorker
from localkube.kubelet.pods.reattach import reattach
from localkube.kubelet.queries import PodQueries
from localkube.kubelet.resources.cgroups import ControlGroups
from localkube.kubelet.resources.eviction import EvictionManager
from localkube.kubelet.resources.limits import Limits
from localkube.kubelet.resources.metrics import RunningContainer, StatsProvider
from localkube.kubelet.volumes.object_cache import ObjectCache, watch_authorities
from localkube.kubelet.volumes.volume_manager import VolumeError, VolumeManager
from localkube.network.addresses import Addresses, LoopbackAddresses, NamespaceAddresses
from localkube.runtime import syscalls
from localkube.runtime.client import RuntimeClient
from localkube.tasks import start_task

log = logging.getLogger(__name__)

REFRESH_SECONDS, SECRET_SECONDS = 60, 2
DEATH_POLL_SECONDS = 0.01


class Kubelet:
    """Runs the nodes of a cluster until its runtime exits."""

    def __init__(self, settings: KubeletConfig) -> None:
        self._settings = settings
        self._nodes: dict[str, VirtualNode] = {}
        self._workers: dict[str, PodWorker] = {}
        self._view = PodQueries(self._workers)
        self._leaving: dict[str, PodWorker] = {}
        self._limits = Limits(
            groups=ControlGroups.claim(settings.socket.parent) if settings.control_groups else None,
            kill=self._out_of_memory,
        )
        self._storage = EvictionManager(settings.pods, pods=lambda: list(self._workers.values()))
        self._meter = StatsProvider(
            settings.nodes,
            running=self._running,
            storage=self._storage.used,
            control_groups=self._limits.usage,
        )
        self._tasks: list[asyncio.Task] = []
        self._runtime: Runtime | None = None
        self._pods: Informer | None = None

    async def run(self) -> None:
        settings = self._settings
        client = await RuntimeClient.connect(settings.socket, on_exit=self._exited)
        api = Api(
            settings.server,
            ca_file=settings.pki / "ca.crt",
            cert_file=settings.pki / "kubelet.crt",
            key_file=settings.pki / "kubelet.key",
        )
        async with api, contextlib.AsyncExitStack() as stack:
            states = NodeStates(settings.node_states)
            for node in settings.nodes:
                state = states[node.name]
                made = VirtualNode(node, api=api, version=settings.version, state=state)
                self._nodes[node.name] = made
            heard = [node for node in self._nodes.values() if node.is_reachable]
            await asyncio.gather(*(node.register() for node in heard))
            pods = self._pods = Informer(
                api, "/api/v1/pods", field_selector="spec.nodeName!=", skip_simulated=True
            )
            addresses = _addresses(settings)
            network = await stack.enter_async_context(
                NodeServices(
                    api, settings, pods=pods, view=self._view, meter=self._meter, addresses=addresses
                )
            )
            authorities = watch_authorities(api)
            objects = ObjectCache(api, authorities=authorities)
            executions = Executions(client)
            self._runtime = Runtime(
                api=api,
                client=client,
                objects=objects,
                volumes=VolumeManager(
                    api,
                    pods=settings.pods,
                    tmpfs=settings.tmpfs,
                    claimed=settings.volumes.resolve(),
                    private=settings.hide,
                    allocatable=self._allocatable,
                    objects=objects,
                    mount=None if settings.plain else syscalls.mount,
                ),
                logs=network.logs,
                executions=executions,
                events=EventRecorder(api),
                hide=settings.hide,
                forkserver=settings.forkserver,
                pods=settings.pods,
                tmpfs=settings.tmpfs,
                services=network.services,
                nodes=Informer(api, "/api/v1/nodes", label_selector=f"!{MARK}"),
                version=settings.version,
                programs=Programs(settings.programs),
                limits=self._limits,
                addresses=addresses,
                plain=PlainPods(addresses, Path(settings.plain.preload)) if settings.plain else None,
            )
            self._view.set_runtime(self._runtime)
            for node in self._nodes.values():
                node.set_runtime(self._runtime)
            for node in heard:
                node.start_heartbeat()
            machines = NodeFaults(self._nodes, states=states, client=client, tenants=self)
            self._go(self._runtime.nodes.run(), "watch nodes")
            self._go(authorities.run(), "watch authorities")
            self._go(self._limits.run(), "limits")
            self._go(self._storage.run(), "storage")
            self._go(self._refresh_volumes(), "volumes")
            self._go(self._follow(pods, client, machines, network), "watch pods")
            await client.gone

    def _allocatable(self, node: str) -> Mapping[str, str]:
        return self._nodes[node].settings.allocatable()

    def _go(self, work: Any, name: str) -> None:
        self._tasks.append(start_task(work, name=name))

    def _out_of_memory(self, identity: str) -> None:
        start_task(self._runtime.client.call("kill", id=identity, signal=9), name=f"out of memory {identity}")

    async def _refresh_volumes(self) -> None:
        """Update ConfigMap, Secret and token files once a minute, as the kubelet does.

        Pods with a Secret are updated sooner: operators write their certificates into one after they have
        started, and do not serve until they see it.
        """
        for turn in itertools.count(1):
            await asyncio.sleep(SECRET_SECONDS)
            everyone = turn % (REFRESH_SECONDS // SECRET_SECONDS) == 0
            for worker in list(self._workers.values()):
                asked = everyone or any("secret" in each for each in worker.pod["spec"].get("volumes") or [])
                try:
                    if asked and not worker.finished and worker.volumes:
                        await self._runtime.volumes.refresh(worker.pod)
                except VolumeError as error:
                    worker.runtime.events.record(worker.pod, error.reason, error.message, warning=True)

    # Pods.

    async def _follow(
        self, pods: Informer, client: RuntimeClient, machines: NodeFaults, network: NodeServices
    ) -> None:
        watching = start_task(pods.run(), name="pods")
        await pods.synced.wait()
        await machines.restore()
        answer, _ = await client.call("list")
        entries = [entry for entry in answer["entries"] if entry["owner"] == "container"]
        known = {pod["metadata"]["uid"] for pod in pods.store.values()}
        for pod in list(pods.store.values()):
            uid = pod["metadata"]["uid"]
            mine = [entry for entry in entries if entry["id"].split(".")[0] == uid]
            if worker := self._worker(pod):
                await reattach(worker, mine, client, address=answer["pods"].get(uid))
                worker.start()
                if self._nodes[pod["spec"]["nodeName"]].is_reachable:
                    worker.changed(pod)
        # Pods of an isolated node run on, also when they were deleted meanwhile.
        isolated = tuple(node.prefix for node in self._nodes.values() if node.state == ISOLATED)
        known |= {uid for uid, address in answer["pods"].items() if isolated and address.startswith(isolated)}
        await self._sweep(client, entries, set(answer["pods"]), known)
        self._limits.keep_only({entry["id"] for entry in entries})
        # What came and went during the adoption was not heard yet.
        pods.subscribe(self._changed)
        present = {pod["metadata"]["uid"] for pod in pods.store.values()}
        for uid in [uid for uid in self._workers if uid not in present]:
            self._gone(uid)
        for pod in list(pods.store.values()):
            self._changed("ADDED", pod, None)
        await network.open()

        simulation = Simulation(settings=self._settings.file, state=self._settings.simulated)
        simulation.restore()

        async def answer_owner(request: Mapping[str, Any]) -> dict[str, Any]:
            if request["verb"] == "simulate":
                return await simulation.set(request["count"])
            return await machines.switch(request["verb"], request["node"])

        await control_socket.serve(self._settings.control, answer_owner)
        await watching

    async def _sweep(
        self, client: RuntimeClient, entries: list[dict[str, Any]], sandboxes: set[str], known: set[str]
    ) -> None:
        """End the processes of pods that were deleted while no kubelet ran, and remove their files."""
        for entry in entries:
            if entry["id"].split(".")[0] not in known:
                await client.call("kill", id=entry["id"], signal=9)
                await client.call("forget", id=entry["id"])
        for uid in sandboxes - known:
            await client.call("remove", pod=uid)
        for directory in [*self._settings.pods.iterdir(), *self._settings.tmpfs.iterdir()]:
            if directory.name not in known:
                await self._runtime.volumes.remove(directory.name)
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    def _worker(self, pod: Mapping[str, Any]) -> PodWorker | None:
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        uid = pod["metadata"]["uid"]
        if node is None or node.state == STOPPED or uid in self._workers:
            return None
        worker = PodWorker(pod, pool=node.pool, runtime=node.runtime)
        self._workers[uid] = worker
        return worker

    def _changed(self, change: str, pod: dict[str, Any], before: dict[str, Any] | None) -> None:
        uid = pod["metadata"]["uid"]
        if before and before["metadata"]["uid"] != uid:
            self._changed("DELETED", before, None)
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node and not node.is_reachable:
            return
        if change == "DELETED":
            self._gone(uid)
        elif worker := self._worker(pod):
            worker.start()
            worker.changed(pod)
        elif uid in self._workers:
            self._workers[uid].changed(pod)

    def _gone(self, uid: str) -> None:
        if worker := self._workers.pop(uid, None):
            # Its containers may still run, and their ends are what the worker then waits for.
            self._leaving[uid] = worker
            task = start_task(worker.discard(), name=f"discard {uid}")
            task.add_done_callback(lambda _: self._leaving.pop(uid))

    # What happens to the pods of a node that is switched off, or comes back (machines.Tenants).

    async def lose(self, node: VirtualNode) -> None:
        """Kill all processes of the node's pods without reporting it."""
        lost = {uid for uid, worker in self._workers.items() if worker.pool is node.pool}
        for uid in lost:
            self._workers.pop(uid).abandon()
        client = self._runtime.client
        answer, _ = await client.call("list")
        lost |= {uid for uid, address in answer["pods"].items() if address.startswith(node.prefix)}
        running = [entry["id"] for entry in answer["entries"] if entry["id"].split(".")[0] in lost]
        for identity in running:
            await client.call("kill", id=identity, signal=9)
        while running:
            answer, _ = await client.call("list")
            alive = {entry["id"] for entry in answer["entries"] if entry["status"] is None}
            running = [identity for identity in running if identity in alive]
            await asyncio.sleep(DEATH_POLL_SECONDS)
        for uid in lost:
            await client.call("forget_pod", pod=uid)
            await client.call("remove", pod=uid)
            await self._runtime.volumes.lose_memory(uid)
            tmpfs = self._runtime.tmpfs_directory(uid)
            await asyncio.to_thread(shutil.rmtree, tmpfs, ignore_errors=True)

    async def reconcile(self, node: VirtualNode) -> None:
        """Bring the node's pods in line with the API."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods.store.values()}
        client = self._runtime.client
        for uid in [uid for uid, worker in self._workers.items() if worker.pool is node.pool]:
            if uid not in pods:
                self._gone(uid)
        mine = [pod for pod in pods.values() if pod["spec"].get("nodeName") == node.name]
        # Those that have an address first: they get it again.
        for pod in sorted(mine, key=lambda each: not each.get("status", {}).get("podIP")):
            if worker := self._worker(pod):
                await reattach(worker, [], client, address=None)
                worker.start()
            self._workers[pod["metadata"]["uid"]].changed(pod)
        answer, _ = await client.call("list")
        entries = [entry for entry in answer["entries"] if entry["owner"] == "container"]
        known = {*pods, *self._workers, *self._leaving}
        await self._sweep(client, entries, set(answer["pods"]), known)

    def _exited(self, entry: dict[str, Any]) -> None:
        if entry["owner"] == "exec" and self._runtime:
            self._runtime.executions.exited(entry)
        if entry["owner"] != "container":
            return
        uid = entry["id"].split(".")[0]
        if worker := self._workers.get(uid) or self._leaving.get(uid):
            worker.exited(entry)

    def _running(self, node: str) -> list[RunningContainer]:
        return [
            RunningContainer(process.identity, name, worker.pod, process.pid, process.started)
            for worker in self._workers.values()
            if worker.pool.settings.name == node
            for name, process in worker.processes.items()
            if process.running
        ]


def _addresses(settings: KubeletConfig) -> Addresses:
    plain = settings.plain
    return LoopbackAddresses(plain.octet, low=plain.low) if plain else NamespaceAddresses()
