"""Faults of virtual nodes: each can be stopped or shut down and started, isolated and reconnected.

What cannot be written down, as on a full disk, is not done: the next kubelet would not know of it.
A stopped node runs nothing; one that is shut down first ends its pods, ordinary ones before critical ones.
An isolated one keeps its pods running: they are moved to a bridge of their own, and the node's requests to
the API fail.
"""

import asyncio
import logging
from collections.abc import Mapping

from localkube.errors import LocalClusterError
from localkube.kubelet.nodes.virtual_node import ISOLATED, RUNNING, STOPPED, NodeStates, VirtualNode
from localkube.kubelet.pods.pod_manager import PodManager
from localkube.kubelet.resources.pressure import is_critical
from localkube.paths import unwritable
from localkube.runtime.client import RuntimeCallError, RuntimeClient

log = logging.getLogger(__name__)

# Of a node that shuts down: for all pods, then for critical ones; and for what they report.
GRACE_SECONDS, CRITICAL_SECONDS, REPORT_SECONDS = 30.0, 10.0, 5.0


class NodeFaults:
    """Runs ``stop``, ``shutdown``, ``start``, ``isolate`` and ``reconnect``, one at a time."""

    def __init__(
        self, nodes: Mapping[str, VirtualNode], *, states: NodeStates, client: RuntimeClient, pods: PodManager
    ) -> None:
        self._nodes, self._states, self._client, self._pods = nodes, states, client, pods
        self._lock = asyncio.Lock()

    async def restore(self) -> None:
        """Finish what a previous kubelet may have begun."""
        for node in self._nodes.values():
            if not node.is_reachable:
                await self._client.call("unplug", **node.network_place())
            if node.state == STOPPED:
                await self._pods.kill_all(node)

    async def switch(self, verb: str, name: str) -> dict[str, str]:
        """Run a verb and return the node's name and state; repeating one is safe."""
        node = self._nodes.get(name)
        if node is None:
            raise LocalClusterError(
                "there is no such node", about=name, fix=f"the nodes are: {', '.join(self._nodes)}"
            )
        verbs = {
            "stop": self._stop,
            "shutdown": self._shut_down,
            "start": self._start,
            "isolate": self._isolate,
            "reconnect": self._reconnect,
        }
        async with self._lock:
            try:
                await verbs[verb](node)
            except RuntimeCallError as error:
                raise LocalClusterError(
                    error.message,
                    about=f"{verb} {name}",
                    fix="stop it, or use a machine that allows namespaces: `python -m localkube doctor`",
                ) from error
            except OSError as error:
                raise unwritable(self._states.path, error) from error
        return {"node": name, "state": node.state}

    async def _stop(self, node: VirtualNode) -> None:
        self._states[node.name] = STOPPED
        node.disconnect(STOPPED)
        await self._client.call("unplug", **node.network_place())
        await self._pods.kill_all(node)

    async def _shut_down(self, node: VirtualNode) -> None:
        """Terminate a node's pods as a kubelet does when its machine shuts down, and stop the node."""
        if node.state == RUNNING:
            node.pool.shutting_down = True
            node.pool.changed.set()
            try:
                for critical, seconds in ((False, GRACE_SECONDS), (True, CRITICAL_SECONDS)):
                    workers = [
                        worker
                        for worker in self._pods.workers()
                        if worker.pool is node.pool
                        and is_critical(worker.pod) == critical
                        and not worker.record.finished
                    ]
                    ends = (worker.terminate(grace=seconds) for worker in workers)
                    await asyncio.wait_for(asyncio.gather(*ends), seconds + REPORT_SECONDS)
            except TimeoutError:
                log.warning("%s is stopped before all of its pods have ended", node.name)
            finally:
                node.pool.shutting_down = False
        await self._stop(node)

    async def _start(self, node: VirtualNode) -> None:
        if node.state == ISOLATED:
            raise LocalClusterError(
                "the node runs; it is isolated from the network", about=node.name, fix="reconnect it"
            )
        await self._return(node)

    async def _isolate(self, node: VirtualNode) -> None:
        if node.state == STOPPED:
            raise LocalClusterError("the node is stopped", about=node.name, fix="start it first")
        if node.state == RUNNING:
            self._states[node.name] = ISOLATED
            try:
                await self._client.call("unplug", isolate=True, **node.network_place())
            except RuntimeCallError:
                self._states[node.name] = RUNNING
                raise
            node.disconnect(ISOLATED)

    async def _reconnect(self, node: VirtualNode) -> None:
        if node.state == STOPPED:
            raise LocalClusterError("the node is stopped", about=node.name, fix="start it")
        await self._return(node)

    async def _return(self, node: VirtualNode) -> None:
        if node.is_reachable:
            return
        await self._client.call("plug", **node.network_place())
        self._states[node.name] = RUNNING
        node.connect()
        await node.register()
        node.start_heartbeat()
        await self._pods.reconcile(node)
