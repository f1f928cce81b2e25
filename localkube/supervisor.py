"""The supervisor: the process that owns one cluster and outlives the command that created it.

It starts the runtime, the control plane and the kubelet, restarts what dies, relays the API on 127.0.0.1, and
runs the gateway, the pods' way to the outside. It holds the cluster's lock for as long as it lives; the
kernel ends the runtime with it.
"""

import asyncio
import contextlib
import fcntl
import functools
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.controlplane.disk_reserve import DiskReserve
from localkube.controlplane.image_service import serve_images
from localkube.controlplane.sleep import Sleep
from localkube.host import start_time
from localkube.kubelet.heartbeat import Watchdog
from localkube.network import accepting
from localkube.network.relay import relay
from localkube.paths import private_opener, write_private
from localkube.runtime import plain, processes, syscalls
from localkube.runtime.client import RuntimeCallError, RuntimeClient, RuntimeExited, short_name
from localkube.tasks import start_task

log = logging.getLogger(__name__)

RUNTIME_INIT = Path(__file__).parent / "runtime" / "init.py"
RESTART_DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_SECONDS = 60.0
API_SERVER, READY_SECONDS = "kube-apiserver", 10.0
# Some components wait so long for the API server, and end: that is no fault of theirs on a slow machine.
AT_ONCE_SECONDS = 10.0
ANSWER_POLL_SECONDS = 0.02
MAX_TOKEN_REVIEWS = 256
# Twice a day; they are valid for thirty days more when it is time.
RENEW_SECONDS = 12 * 3600
MAX_LOG_BYTES, ROTATE_SECONDS = 10 * 2**20, 60
GATEWAY_NICENESS = 5  # what pods send into the world does not slow down what they compute


@dataclass
class ManagedProcess:
    """A program that the supervisor runs, and its recent crashes."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: str
    starts_after: str
    op: str = "component"
    delay: float = 0.0
    cwd: str = "/"
    crashes: int = 0
    started: float = 0.0
    identity: str = field(default="")


class Supervisor:
    """Runs the cluster described by ``root/plan.json`` (``cluster/preparation.py``)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._plan: dict[str, Any] = json.loads((root / "plan.json").read_text())
        self._components = {raw["name"]: ManagedProcess(**raw) for raw in self._plan["components"]}
        self._client: RuntimeClient  # once the runtime runs
        self._gateway: subprocess.Popen[bytes] | None = None
        self._processes: dict[str, dict[str, int | None]] = {}
        self._crashes: dict[str, dict[str, int]] = {}
        self._stopping = asyncio.Event()
        names, seconds = list(self._components), self._plan["sleep_seconds"]
        self._sleep = Sleep(root, seconds, programs=names, send=self._signal, connect=self._connect)
        # While it is not set, all requests are denied. During creation, `create` waits for readiness instead.
        self._api_ready = asyncio.Event()
        self._api_ready.set()

    async def run(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        write_private(self._root / "crashes.json", json.dumps(self._crashes, indent=1))
        self._note("supervisor", os.getpid())
        if self._plan["runtime"]["mode"] == "plain":
            syscalls.adopt_orphans()
        runtime = self._start_runtime()
        self._note("runtime", runtime.pid)
        try:
            start_task(Watchdog(self._root, self._sleep.awake).run(), name="watchdog")
            self._client = await RuntimeClient.connect(self._root / "runtime.sock", on_exit=self._exited)
            if self._plan["gateway"]:
                start_task(self._keep_gateway(), name="gateway")
            for component in self._components.values():
                if not component.starts_after:
                    await self._start(component)
            if self._plan["token_webhook"]:
                start_task(self._serve_token_reviews(**self._plan["token_webhook"]), name="token webhook")
            start_task(self._start_after_answer(), name="components that need the API")
            start_task(self._start_when_ready(), name="components that need readiness")
            if self._plan["images"]:
                await serve_images(self._root / "images.sock", **self._plan["images"])
            start_task(self._sleep.run(), name="sleep")
            start_task(self._serve(listener), name="forwarder")
            start_task(rotate_logs(self._root / "logs"), name="logs")
            reserve = DiskReserve(self._root / "etcd.reserve")
            start_task(reserve.keep(self._sleep.awake), name="disk reserve")
            start_task(keep_certificates(self._root), name="certificates")
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([stop, self._client.gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            runtime.terminate()
            runtime.wait()
            if self._plan["runtime"]["mode"] == "plain":
                # This process has adopted what the runtime left running.
                plain.end_children(besides=[self._gateway.pid] if self._gateway else [])
            if self._gateway:
                self._gateway.kill()
                self._gateway.wait()

    def _start_runtime(self) -> subprocess.Popen[bytes]:
        path = self._root / "runtime.sock"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with short_name(path) as name:
                listener.bind(name)
            path.chmod(0o600)
            listener.listen(8)
            settings = self._plan["runtime"] | {"listener": listener.fileno()}
            command = [sys.executable, "-S", "-s", "-E", str(RUNTIME_INIT), json.dumps(settings)]
            return subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)

    def _note(self, name: str, pid: int) -> None:
        """Record a process for ``delete`` by pid and start time, because pids are reused."""
        self._processes[name] = {"pid": pid, "start_time": start_time(pid)}
        write_private(self._root / "processes.json", json.dumps(self._processes, indent=1))

    # Components.

    async def _start(self, component: ManagedProcess) -> None:
        component.identity = f"{component.name}.{component.crashes}"
        component.started = asyncio.get_running_loop().time()
        request = {
            "id": component.identity,
            "argv": component.argv,
            "env": component.env,
            "log": component.log,
            "cwd": component.cwd,
        }
        await self._client.call(component.op, **request)

    async def _signal(self, name: str, number: int) -> None:
        await self._client.call("kill", id=self._components[name].identity, signal=number)

    async def _start_with_retry(self, component: ManagedProcess) -> None:
        """Start a component, retrying until it runs: a full disk or a lack of memory may pass."""
        for refusals in itertools.count():
            try:
                await self._start(component)
                return
            except RuntimeCallError as error:
                delay = _restart_delay(refusals)
                log.warning("%s cannot be started: %s; trying again in %s s", component.name, error, delay)
            await asyncio.sleep(delay)

    async def _start_after_answer(self) -> None:
        """Start the components that need the API once the API server answers."""
        while not await self._api_answers():  # noqa: ASYNC110 - a listener's birth cannot be watched
            await asyncio.sleep(ANSWER_POLL_SECONDS)
        answered = asyncio.get_running_loop().time()
        components = [item for item in self._components.values() if item.starts_after == "answer"]
        for component in sorted(components, key=lambda component: component.delay):
            await asyncio.sleep(answered + component.delay - asyncio.get_running_loop().time())
            if not self._stopping.is_set():
                await self._start_with_retry(component)

    async def _api_answers(self) -> bool:
        """Check whether the API server serves, not only listens, by a plain-text request that it refuses."""
        try:
            upstream = await self._connect()
        except OSError:
            return False
        loop = asyncio.get_running_loop()
        with contextlib.closing(upstream):
            try:
                await loop.sock_sendall(upstream, b"GET /livez HTTP/1.0\r\n\r\n")
                return bool(await loop.sock_recv(upstream, 1))
            except OSError:
                return False

    async def _start_when_ready(self) -> None:
        await self._wait_for_readiness()
        for component in self._components.values():
            if component.starts_after == "readiness" and not self._stopping.is_set():
                await self._start_with_retry(component)

    async def _admit_clients_when_ready(self) -> None:
        """Admit clients once the API server is ready: before, it denies what its caches do not have yet."""
        await self._wait_for_readiness()
        self._api_ready.set()

    async def _wait_for_readiness(self) -> None:
        tls = ssl.create_default_context(cafile=str(self._root / "pki" / "ca.crt"))
        while not await self._api_is_ready(tls):  # noqa: ASYNC110 - readiness cannot be watched
            await asyncio.sleep(ANSWER_POLL_SECONDS)

    async def _api_is_ready(self, tls: ssl.SSLContext) -> bool:
        try:
            upstream = await self._connect(ready=False)
            reader, writer = await asyncio.open_connection(
                sock=upstream, ssl=tls, server_hostname="localhost"
            )
        except (OSError, RuntimeCallError):
            return False
        try:
            writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
            return b" 200 " in await asyncio.wait_for(reader.readline(), READY_SECONDS)
        except OSError:  # a timeout is one
            return False
        finally:
            writer.close()

    def _exited(self, entry: dict[str, Any]) -> None:
        name = entry["id"].rsplit(".", 1)[0]
        component = self._components.get(name)
        if entry["owner"] == "component" and component and not self._stopping.is_set():
            start_task(self._restart(component, entry), name=f"restart {name}")
            if name == API_SERVER:
                self._api_ready.clear()
                start_task(self._admit_clients_when_ready(), name="readiness")

    async def _restart(self, component: ManagedProcess, entry: dict[str, Any]) -> None:
        code = os.waitstatus_to_exitcode(entry["status"])
        lived = asyncio.get_running_loop().time() - component.started
        if lived < AT_ONCE_SECONDS:
            self._record_crash(component.name, code)
        if lived > STEADY_SECONDS:
            component.crashes = 0
        delay = _restart_delay(component.crashes)
        component.crashes += 1
        log.warning("%s ended with %s; starting it again in %s s", component.name, code, delay)
        with contextlib.suppress(RuntimeExited):
            await self._client.call("delete", id=entry["id"])
            await asyncio.sleep(delay)
            await self._sleep.wake()
            await self._start_with_retry(component)

    def _record_crash(self, name: str, code: int) -> None:
        """Record a crash right after a start, for the command that waits for the cluster."""
        count = self._crashes.get(name, {"count": 0})["count"] + 1
        self._crashes[name] = {"count": count, "code": code}
        with contextlib.suppress(OSError):  # a full disk; the component is started again all the same
            write_private(self._root / "crashes.json", json.dumps(self._crashes, indent=1))

    async def _keep_gateway(self) -> None:
        """Run the gateway in the host's network, and restart it."""
        while not self._stopping.is_set():
            try:
                _, (gate,) = await self._client.call("open_gateway")
                gateway = self._start_gateway(gate)
                ended = f"ended with {await asyncio.to_thread(gateway.wait)}"
            except (OSError, RuntimeCallError) as error:
                ended = f"cannot be started: {error}"
            if not self._stopping.is_set():
                log.warning("the gateway %s; starting it again", ended)
                await asyncio.sleep(1)

    def _start_gateway(self, gate: int) -> subprocess.Popen[bytes]:
        argv = [word.replace("{fd}", str(gate)) for word in self._plan["gateway"]]
        try:
            with open(self._root / "logs" / "gateway.log", "ab", opener=private_opener) as output:
                self._gateway = subprocess.Popen(
                    argv, pass_fds=[gate], stdin=subprocess.PIPE, stdout=output, stderr=output
                )
        finally:
            os.close(gate)
        os.setpriority(os.PRIO_PROCESS, self._gateway.pid, GATEWAY_NICENESS)
        with contextlib.suppress(OSError):  # a full disk; it ends with this process all the same
            self._note("gateway", self._gateway.pid)
        return self._gateway

    # The API on the host.

    async def _serve(self, listener: socket.socket) -> None:
        limit = accepting.use_all_descriptors()
        await accepting.accept(listener, self._forward, limit=limit, admit=accepting.is_ours)

    async def _forward(self, client: socket.socket) -> None:
        with self._sleep.client():
            try:
                await self._sleep.wake()
                upstream = await self._connect()
            except (OSError, RuntimeCallError, RuntimeExited):
                client.close()
                return
            await relay(client, upstream, http=True)

    async def _connect(self, *, ready: bool = True) -> socket.socket:
        """Connect to the API server, by default only while it is ready."""
        if ready and not self._api_ready.is_set():
            raise ConnectionRefusedError
        _, descriptors = await self._client.call("socket")
        upstream = socket.socket(fileno=descriptors[0])
        upstream.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(upstream, tuple(self._plan["api"]))
        except OSError:
            upstream.close()
            raise
        return upstream

    # The token webhook, a server of the host that only the API server reaches: pods have other networks.

    async def _serve_token_reviews(self, listen: list[Any], upstream: list[Any]) -> None:
        _, descriptors = await self._client.call("socket")
        listener = socket.socket(fileno=descriptors[0])
        listener.bind(tuple(listen))
        listener.listen()
        handle = functools.partial(self._relay_token_review, address=tuple(upstream))
        await accepting.accept(listener, handle, limit=MAX_TOKEN_REVIEWS)

    async def _relay_token_review(self, client: socket.socket, address: tuple[str, int]) -> None:
        upstream = socket.socket()
        upstream.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(upstream, address)
        except OSError:
            client.close()
            upstream.close()
            return
        await relay(client, upstream)


def _restart_delay(failures: int) -> float:
    return RESTART_DELAYS[min(failures, len(RESTART_DELAYS) - 1)]


async def keep_certificates(root: Path) -> None:
    """Renew the certificates before they expire, in a process whose memory is freed at its end."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        command = [sys.executable, "-m", "localkube.controlplane.renewal", str(root)]
        try:
            renewal = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL)
            if code := await renewal.wait():
                log.warning("certificates cannot be renewed: exit status %s; trying again", code)
        except OSError as error:
            log.warning("certificates cannot be renewed: %s; trying again", error)


async def rotate_logs(folder: Path) -> None:
    while True:
        rotate(folder)
        await asyncio.sleep(ROTATE_SECONDS)


def rotate(folder: Path, *, limit: int = MAX_LOG_BYTES) -> None:
    """Keep the last part of each log larger than ``limit`` bytes as ``NAME.log.1``, and truncate the log.

    Its writer has it open for appending, and cannot be told to open another. Lines written meanwhile are
    lost.
    """
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_size <= limit:
                continue
            with contextlib.suppress(OSError):  # a full disk: the log is truncated all the same
                _copy_end(path, path.with_name(path.name + ".1"), limit)
            os.truncate(path, 0)


def _copy_end(source: Path, target: Path, limit: int) -> None:
    with (
        source.open("rb") as read,
        open(target, "wb", opener=private_opener) as write,
    ):
        read.seek(-min(limit, source.stat().st_size), os.SEEK_END)
        shutil.copyfileobj(read, write)


def main() -> None:
    root = Path(sys.argv[1])
    with socket.socket(fileno=int(sys.argv[2])) as creator:  # ``cluster/supervisor_process.py``
        _, descriptors, _, _ = socket.recv_fds(creator, 16, 8, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:  # it creates no cluster
        return
    output, listener = descriptors[0], socket.socket(fileno=descriptors[1])
    os.dup2(output, 1), os.dup2(output, 2)
    os.close(output)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    processes.protect()
    lock = os.open(root / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    asyncio.run(Supervisor(root).run(listener))


if __name__ == "__main__":
    main()
