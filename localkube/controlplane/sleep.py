"""Sleep: the programs of an idle cluster are stopped, and resumed when a client connects.

Eight idle programs wake up for their timers some hundred times a second. When no client has been connected to
the API and nothing could happen in the cluster for a while, the supervisor sends all of them SIGSTOP. It
accepts the connections of clients itself (``supervisor.py``), so that the next connection resumes the
programs; that client waits only for the API server's first answer. In doubt a cluster stays awake: `WAKEFUL`
lists what Kubernetes does without a client, such as running a CronJob.
"""

import asyncio
import contextlib
import http.client
import json
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from localkube.api_path import Object, api_path
from localkube.controlplane.client_credentials import client_tls
from localkube.controlplane.node_reports import has_reported
from localkube.runtime.client import RuntimeCallError, RuntimeExited
from localkube.tasks import start_task

log = logging.getLogger(__name__)

# Checks in the time after which a cluster sleeps, and the objects of a resource that a check reads.
CHECKS, MAX_OBJECTS = 5, 500
NOT_FINISHED = "&fieldSelector=status.phase!=Succeeded,status.phase!=Failed"
# Its node controller marks a node whose kubelet has been silent as lost (``components.NODE_GRACE``). So it is
# resumed last, when all nodes have reported: it reads the new status, at the latest after a conflict.
CONTROLLER_MANAGER = "kube-controller-manager"
FRESH_SECONDS, ANSWER_SECONDS = 10, 5.0
OWN_PODS = ("kube-dns", "kube-proxy", "metrics-server")

Send = Callable[[str, int], Awaitable[None]]


def _has_not_finished(pod: Object) -> bool:
    """Check whether a pod has not finished; those of the cluster's own programs do not count."""
    labels = pod["metadata"].get("labels") or {}
    own = labels.get("tier") == "control-plane" or labels.get("k8s-app") in OWN_PODS
    if pod["metadata"]["namespace"] == "kube-system" and own:
        return False
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def _job_is_due(job: Object) -> bool:
    """Check whether a Job has work, or will be deleted after its TTL."""
    conditions = job["status"].get("conditions") or []
    ended = any(item["type"] in ("Complete", "Failed") and item["status"] == "True" for item in conditions)
    return "ttlSecondsAfterFinished" in job["spec"] or not (ended or job["spec"].get("suspend"))


def _has_replicas(workload: Object) -> bool:
    return bool(workload["spec"].get("replicas", 1))


# What keeps a cluster awake, by resource, in the order of the checks.
WAKEFUL: Mapping[str, Callable[[Object], bool]] = {
    "v1/pods": _has_not_finished,
    "batch/v1/jobs": _job_is_due,
    "batch/v1/cronjobs": lambda cron: not cron["spec"].get("suspend"),
    "apps/v1/deployments": _has_replicas,
    "apps/v1/statefulsets": _has_replicas,
    "apps/v1/replicasets": _has_replicas,
    "v1/replicationcontrollers": _has_replicas,
    "apps/v1/daemonsets": lambda workload: bool(workload["status"].get("desiredNumberScheduled")),
    "autoscaling/v2/horizontalpodautoscalers": lambda _: True,
    "v1/services": lambda service: (
        service["spec"].get("type", "ClusterIP") not in ("ClusterIP", "ExternalName")
    ),
    "v1/persistentvolumeclaims": lambda claim: claim["status"].get("phase") != "Bound",
    "v1/namespaces": lambda namespace: namespace["status"].get("phase") == "Terminating",
    "v1/nodes": lambda node: not has_reported(node),
}


def _list(connection: http.client.HTTPConnection, resource: str) -> Object:
    query = f"?limit={MAX_OBJECTS}" + NOT_FINISHED * (resource == "v1/pods")
    connection.request("GET", api_path(resource) + query)
    answer = connection.getresponse()
    content: Object = json.loads(answer.read())
    if answer.status != 200 or content["metadata"].get("continue"):
        raise ConnectionError(f"{resource}: {answer.status}, or more than {MAX_OBJECTS}")
    return content


class Sleep:
    """Stops and resumes a cluster's programs; runs in the supervisor's event loop.

    Args:
        root: The cluster's directory.
        seconds: Seconds without clients and work after which the cluster sleeps; 0 for never.
        programs: The programs' names.
        send: Sends a signal to a program.
        connect: Connects to the API server.
    """

    def __init__(
        self,
        root: Path,
        seconds: float,
        *,
        programs: list[str],
        send: Send,
        connect: Callable[[], Awaitable[socket.socket]],
    ) -> None:
        self._mark, self._pki, self._seconds = root / "asleep", root / "pki", seconds
        self._static = root / "static-pods"
        self._programs, self._send, self._connect = programs, send, connect
        self._clients, self._last_activity = 0, 0.0
        self._lock = asyncio.Lock()
        self._resume_task: asyncio.Task[None] | None = None
        self.awake = asyncio.Event()
        self.awake.set()
        self._mark.unlink(missing_ok=True)

    @contextlib.contextmanager
    def client(self) -> Iterator[None]:
        """Keep the cluster awake for a client that is connected."""
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1
            self._last_activity = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Stop the programs whenever the cluster has been idle for long enough."""
        loop = asyncio.get_running_loop()
        self._last_activity, logged = loop.time(), ""
        while self._seconds:
            await asyncio.sleep(self._seconds / CHECKS)
            await self.awake.wait()
            reason = await self._wakeful_reason()
            if reason not in ("", logged):
                log.info("the cluster stays awake: %s", reason)
                logged = reason
            if reason:
                self._last_activity = loop.time()
            elif loop.time() - self._last_activity >= self._seconds:
                await self._stop()

    async def _wakeful_reason(self) -> str:
        """Name what keeps the cluster awake; empty if nothing does."""
        if self._clients or self._static.exists():
            return f"{self._clients} clients" if self._clients else "static pods"
        try:
            with contextlib.closing(await self._connect()) as sock:
                return await asyncio.to_thread(self._find_wakeful, sock)
        except (OSError, http.client.HTTPException, RuntimeCallError, RuntimeExited) as error:
            return f"the API server does not answer: {error}"

    def _find_wakeful(self, sock: socket.socket) -> str:
        connection = self._open(sock, seconds=ANSWER_SECONDS)
        for resource, is_wakeful in WAKEFUL.items():
            if any(map(is_wakeful, _list(connection, resource)["items"])):
                return resource
        return ""

    def _open(self, sock: socket.socket, *, seconds: float) -> http.client.HTTPConnection:
        """Open an administrator's HTTP connection over a socket, with a timeout for each answer."""
        sock.settimeout(seconds)
        connection = http.client.HTTPConnection("localhost")
        connection.sock = client_tls(self._pki).wrap_socket(sock, server_hostname="localhost")
        return connection

    async def _stop(self) -> None:
        async with self._lock:
            if self._clients:
                return
            log.info("the cluster is idle: its programs are stopped")
            self.awake.clear()
            if self._resume_task:
                self._resume_task.cancel()
            with contextlib.suppress(OSError):  # a full disk
                self._mark.touch(mode=0o600)
            await self._signal(self._programs, signal.SIGSTOP)

    async def wake(self) -> None:
        """Resume all programs; returns when the API server can answer."""
        async with self._lock:
            if self.awake.is_set():
                return
            now, self._last_activity = time.time(), asyncio.get_running_loop().time()
            programs = [name for name in self._programs if name != CONTROLLER_MANAGER]
            await self._signal(programs, signal.SIGCONT)
            resume = self._resume_controller_manager(since=now)
            self._resume_task = start_task(resume, name=f"resume {CONTROLLER_MANAGER}")
            self._mark.unlink(missing_ok=True)
            self.awake.set()
            log.info("a client connected: the programs continue")

    async def _resume_controller_manager(self, *, since: float) -> None:
        """Resume the controller manager once all nodes have reported since this time."""
        try:
            with contextlib.closing(await self._connect()) as sock:
                await asyncio.to_thread(self._wait_for_nodes, sock, since)
        except (OSError, ValueError, http.client.HTTPException, RuntimeCallError, RuntimeExited) as error:
            log.warning("cannot read whether the nodes are Ready: %s", error)
        await self._signal([CONTROLLER_MANAGER], signal.SIGCONT)

    def _wait_for_nodes(self, sock: socket.socket, since: float) -> None:
        connection = self._open(sock, seconds=FRESH_SECONDS)
        nodes = _list(connection, "v1/nodes")
        late = {node["metadata"]["name"] for node in nodes["items"] if not has_reported(node, since=since)}
        version = nodes["metadata"]["resourceVersion"]
        query = f"?watch=1&timeoutSeconds={FRESH_SECONDS}&resourceVersion={version}"
        connection.request("GET", api_path("v1/nodes") + query)
        watch = connection.getresponse()
        while late and (line := watch.readline()):
            event = json.loads(line)
            if event["type"] == "ERROR":
                break
            if event["type"] == "DELETED" or has_reported(event["object"], since=since):
                late.discard(event["object"]["metadata"]["name"])
        if late:
            log.warning("nodes have not reported after %d s: %s", FRESH_SECONDS, ", ".join(sorted(late)))

    async def _signal(self, programs: list[str], number: int) -> None:
        for program in programs:
            with contextlib.suppress(RuntimeCallError):
                await self._send(program, number)
