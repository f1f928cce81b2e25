"""Simulated nodes: pods bound to them are reported as Running, and nothing runs.

A program of its own, started by ``simulation.py``, so that ten thousand simulated pods do not slow down real
ones. A simulated node has the label and the taint ``trainyard/simulated``. Pods run as soon as they are
bound, pods of Jobs succeed after the seconds in their annotation ``trainyard/simulated-seconds`` (default 0),
deleted pods are gone at once. There are no logs, exec or metrics. After kwok (https://kwok.sigs.k8s.io),
whose lease durations are used.
"""

import asyncio
import copy
import itertools
import json
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any

from localkube.api_client import SIMULATED_PREFIX, Api
from localkube.api_path import api_path
from localkube.errors import ApiError
from localkube.kubelet.api_clients import files
from localkube.kubelet.cluster_objects import manifest
from localkube.kubelet.kubelet_config import KubeletConfig
from localkube.kubelet.nodes.node import is_ready, renew, rfc3339
from localkube.kubelet.nodes.simulation import MARK
from localkube.tasks import start_task

log = logging.getLogger(__name__)

SECONDS = MARK + "-seconds"
LEASE_SECONDS = 40
# As kwok for many; a few can be sooner, which keeps them Ready on a machine that has too much to do.
LEAST_RENEW_SECONDS, MOST_RENEW_SECONDS, RENEWALS_A_SECOND = 4.0, 10.0, 100
STATUS_SECONDS = 300
AT_ONCE, HEARTBEATS_AT_ONCE = 32, 16
RETRY_SECONDS = 0.5

WORTH_READING = (b'"phase":"Pending"', b'"deletionTimestamp"', b'"status":"False"')
# Cheaper for the API server than a strategic one.
MERGE = "application/merge-patch+json"


class Simulator:
    """Serves ``count`` simulated nodes, for ever."""

    def __init__(self, api: Api, *, count: int, version: str) -> None:
        self._api, self._count, self._kubernetes = api, count, version
        self._names = {f"{SIMULATED_PREFIX}{index}" for index in range(count)}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._begun: set[str] = set()
        self._addresses = 0

    async def run(self) -> None:
        """Create the nodes, print a line when they are ready, and serve their pods."""
        await self._shape()
        for task in (
            self._beat(),
            self._follow(api_path("v1/nodes"), {"labelSelector": MARK}, self._see_node, self._read_node),
            self._follow(api_path("v1/pods"), {"fieldSelector": "spec.nodeName!="}, self._see, self._read),
        ):
            _go(task)
        print(json.dumps({"nodes": self._count}), flush=True)
        await asyncio.Event().wait()

    async def _follow(
        self,
        path: str,
        selector: dict[str, str],
        see: Callable[[dict[str, Any]], None],
        read: Callable[[bytes], None],
    ) -> None:
        while True:
            try:
                answer = await self._api.get(path, **selector)
                for item in answer.get("items") or []:
                    see(item)
                begin = {"watch": "1", "resourceVersion": answer["metadata"]["resourceVersion"]}
                async for line in self._api.lines(path, selector | begin | {"timeoutSeconds": "3000"}):
                    read(line)
            except ApiError as error:
                log.info("watching %s: %s", path, error)
                await asyncio.sleep(RETRY_SECONDS)

    # Nodes

    async def _shape(self) -> None:
        """Create missing nodes and delete surplus ones."""
        answer = await self._api.get(api_path("v1/nodes"), labelSelector=MARK)
        existing = {item["metadata"]["name"] for item in answer.get("items") or []}
        missing = [index for index in range(self._count) if f"{SIMULATED_PREFIX}{index}" not in existing]
        await asyncio.gather(*(self._create(index) for index in missing))
        await asyncio.gather(*(self._revive(name) for name in existing & self._names))
        await asyncio.gather(
            *(self._delete(api_path("v1/nodes", name=name)) for name in existing - self._names)
        )

    async def _create(self, index: int) -> None:
        item = node_object(index, version=self._kubernetes)
        await self._send("POST", api_path("v1/nodes"), item, "application/json")
        await self._lease(item["metadata"]["name"])

    async def _revive(self, name: str) -> None:
        status = {"status": node_status(name, version=self._kubernetes)}
        path = api_path("v1/nodes", name=name, subresource="status")
        await self._send("PATCH", path, status, MERGE)
        await self._lease(name)

    async def _lease(self, name: str) -> None:
        try:
            await renew(self._api, name, seconds=LEASE_SECONDS)
        except ApiError as error:
            log.warning("lease of %s: %s", name, error)

    async def _beat(self) -> None:
        """Renew the leases in turn, evenly; each status now and then."""
        if not self._names:
            return
        slots = asyncio.Semaphore(HEARTBEATS_AT_ONCE)
        seconds = len(self._names) / RENEWALS_A_SECOND
        period = min(MOST_RENEW_SECONDS, max(LEAST_RENEW_SECONDS, seconds))
        for start_heartbeat in itertools.count(1):
            with_status = start_heartbeat % int(STATUS_SECONDS / period) == 0
            for name in sorted(self._names):
                await asyncio.sleep(period / len(self._names))
                await slots.acquire()
                _go(_released(self._revive(name) if with_status else self._lease(name), slots))

    def _read_node(self, line: bytes) -> None:
        event = json.loads(line)
        if event["type"] == "MODIFIED":
            self._see_node(event["object"])

    def _see_node(self, node: dict[str, Any]) -> None:
        """Correct the node controller, which calls a node unreachable whose lease was late."""
        name = node["metadata"]["name"]
        if name in self._names and not is_ready(node):
            _go(self._revive(name))

    # Pods

    def _read(self, line: bytes) -> None:
        # Most lines tell what was reported from here: they are not worth reading.
        if line.startswith(b'{"type":"DELETED"'):
            self._begun.discard(json.loads(line)["object"]["metadata"]["uid"])
        elif any(word in line for word in WORTH_READING):
            self._see(json.loads(line)["object"])

    def _see(self, pod: dict[str, Any]) -> None:
        node, meta = pod["spec"].get("nodeName", ""), pod["metadata"]
        if not node.startswith(SIMULATED_PREFIX):
            return
        path = api_path("v1/pods", namespace=meta["namespace"], name=meta["name"])
        if node not in self._names or meta.get("deletionTimestamp"):
            _go(self._delete(path))
        elif meta["uid"] not in self._begun and pod.get("status", {}).get("phase") in ("Pending", "Running"):
            self._begun.add(meta["uid"])
            _go(self._sync(pod, path))
        elif pod.get("status", {}).get("phase") == "Running" and not is_ready(pod):
            # The node controller says so of every pod of a node that was silent for a while.
            _go(self._report(pod, path, running(pod, pod["status"]["podIP"], rfc3339())))

    async def _sync(self, pod: dict[str, Any], path: str) -> None:
        began = rfc3339()
        if pod["status"]["phase"] == "Pending":
            await self._report(pod, path, running(pod, self._address(), began))
        if any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences") or []):
            await asyncio.sleep(_seconds(pod))
            await self._report(pod, path, succeeded(pod, began, rfc3339()))

    def _address(self) -> str:
        """Return the next of a million unreachable addresses."""
        self._addresses += 1
        low = self._addresses % 2**20
        return f"10.{128 + (low >> 16)}.{low >> 8 & 255}.{low & 255}"

    async def _report(self, pod: dict[str, Any], path: str, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._send("PATCH", path + "/status", body, MERGE)

    async def _delete(self, path: str) -> None:
        await self._send("DELETE", path, {"gracePeriodSeconds": 0}, "application/json")

    async def _send(self, method: str, path: str, body: dict[str, Any], content_type: str) -> None:
        """Send a request until the API server accepts or refuses it."""
        data = json.dumps(body).encode()
        while True:
            async with self._slots:
                status = await self._api.send(method, path, data, content_type)
            if 0 < status < 500 and status != 429:
                if status >= 400 and status not in (404, 409):
                    log.warning("%s %s: status %s", method, path, status)
                return
            await asyncio.sleep(RETRY_SECONDS)


def _go(work: Coroutine[Any, Any, None]) -> None:
    start_task(work, name="simulation")


async def _released(work: Coroutine[Any, Any, None], slots: asyncio.Semaphore) -> None:
    try:
        await work
    finally:
        slots.release()


def _seconds(pod: dict[str, Any]) -> float:
    try:
        return float((pod["metadata"].get("annotations") or {}).get(SECONDS, 0))
    except ValueError:
        return 0.0


OURS = ("Initialized", "ContainersReady", "Ready")


def node_object(index: int, *, version: str) -> dict[str, Any]:
    """The Node of a simulated node."""
    name = f"{SIMULATED_PREFIX}{index}"
    node = copy.deepcopy(_template())
    node["metadata"]["name"] = name
    node["metadata"]["labels"] |= {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"simulated-{'abc'[index % 3]}",
    }
    return node | {"status": node_status(name, version=version)}


def node_status(name: str, *, version: str) -> dict[str, Any]:
    status, now = copy.deepcopy(_template()["status"]), rfc3339()
    status["addresses"] = [{"type": "Hostname", "address": name}]
    status["conditions"][0] |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    status["nodeInfo"] |= {"kubeletVersion": version, "machineID": name, "systemUUID": name}
    return status


@cache
def _template() -> dict[str, Any]:
    return manifest("simulated-node")[0]


def running(pod: dict[str, Any], address: str, now: str) -> dict[str, Any]:
    """The status of a pod whose containers all run."""
    spec = pod["spec"]
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    status: dict[str, Any] = {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            *_others(pod),
            *({"type": kind, "status": "True", "lastTransitionTime": now} for kind in OURS),
        ],
        "containerStatuses": [
            _container(container, {"running": {"startedAt": now}}, ready=True)
            for container in spec["containers"]
        ],
    }
    if init := spec.get("initContainers"):
        status["initContainerStatuses"] = [_container(container, ended, ready=True) for container in init]
    return status


def succeeded(pod: dict[str, Any], began: str, now: str) -> dict[str, Any]:
    """The status of a pod whose containers have all succeeded."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": now}}
    return {
        "phase": "Succeeded",
        "conditions": [
            *_others(pod),
            {"type": "Initialized", "status": "True", "lastTransitionTime": began},
            *(
                {"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
                for kind in ("ContainersReady", "Ready")
            ),
        ],
        "containerStatuses": [
            _container(container, ended, ready=False) for container in pod["spec"]["containers"]
        ],
    }


def _others(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The conditions of other owners: a merge patch replaces the list."""
    return [condition for condition in pod["status"].get("conditions") or [] if condition["type"] not in OURS]


def _container(container: dict[str, Any], state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }


async def _main(settings: KubeletConfig, count: int) -> None:
    api = Api(
        settings.server,
        **files(settings.pki, "simulator"),
        connections=AT_ONCE + HEARTBEATS_AT_ONCE,
    )
    async with api:
        start_task(api.follow_renewals(), name="renewals of the certificate", critical=True)
        await Simulator(api, count=count, version=settings.version).run()


def main() -> None:
    """``python -m localkube.kubelet.nodes.simulator KUBELET.JSON COUNT``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s simulator %(levelname)s %(message)s")
    asyncio.run(_main(KubeletConfig.read(Path(sys.argv[1])), int(sys.argv[2])))


if __name__ == "__main__":
    main()
