"""The runtime by itself, without a control plane, as this user or as nobody."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from localkube.kubelet.pods.container_spec import DEVICES
from localkube.network.addresses import NETWORK
from localkube.runtime.client import RuntimeClient
from localkube.runtime.container_spec import (
    ContainerSpec,
    LinuxIdMapping,
    LinuxSpec,
    MountSpec,
    ProcessSpec,
    StartRequest,
)
from localkube.runtime.messages import close_all
from localkube.runtime.syscalls import DEFAULT_CAPABILITIES
from localkube.supervisor import RUNTIME_INIT

from ..node.restrictions import become_nobody, python_places
from ..patience import PATIENCE
from .users import folder_of


def depth(process: psutil.Process) -> int:
    """Count the PID namespaces that a process has a number in."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return len(next(line for line in status if line.startswith("NSpid:")).split()) - 1


NODES = tuple(f"/dev/{name}" for name in DEVICES)


class BareRuntime:
    """A running runtime; ``folder`` is at /folder in its containers, which may write there."""

    def __init__(self, path: Path, folder: Path, process: psutil.Process) -> None:
        self.folder, self.process = folder, process
        self.depth = depth(psutil.Process()) + 1  # of the runtime's own processes
        self._path = path
        self._exits: dict[str, asyncio.Future] = {}
        self.client: RuntimeClient

    async def connect(self) -> RuntimeClient:
        return await RuntimeClient.connect(self._path, on_exit=self._exited)

    def raw_connection(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(self._path))
        return sock

    async def call(self, op: str, **request: Any) -> dict[str, Any]:
        """Send a request; its descriptors are closed."""
        async with asyncio.timeout(PATIENCE):
            answer, descriptors = await self.client.call(op, **request)
        close_all(descriptors)
        return answer

    async def sandbox(self, pod: str, number: int) -> None:
        network = NETWORK.pod_network() | {"ids": LinuxIdMapping()}
        await self.call("run_sandbox", pod=pod, hostname=pod, address=f"10.244.1.{number}", **network)

    async def run(self, identity: str, *args: str, env: Sequence[str] = ()) -> dict[str, Any]:
        """Start a container of the pod before the dot."""
        process = ProcessSpec(args, ("PATH=/usr/bin:/bin", *env), capabilities=DEFAULT_CAPABILITIES)
        mounts = (MountSpec("/folder", source=str(self.folder)),)
        spec = ContainerSpec(process, mounts=mounts, linux=LinuxSpec(devices=NODES))
        return await self.call("run", id=identity, pod=identity.split(".")[0], **vars(StartRequest(spec)))

    async def execute(self, identity: str, container: str, *args: str, env: Sequence[str] = ()) -> Any:
        process = ProcessSpec(args, tuple(env))
        return await self.call("exec", id=identity, container=container, process=process, stdin=False)

    async def status(self, identity: str) -> int:
        """Wait for the end of a process; returns its status."""
        async with asyncio.timeout(PATIENCE):
            return await self._exit(identity)

    def _exit(self, identity: str) -> asyncio.Future:
        return self._exits.setdefault(identity, asyncio.get_running_loop().create_future())

    def _exited(self, entry: dict[str, Any]) -> None:
        self._exit(entry["id"]).set_result(entry["status"])


@asynccontextmanager
async def bare_runtime(user: int, **settings: Any) -> AsyncIterator[BareRuntime]:
    """Yield a runtime of that user; it ends with everything in it.

    Args:
        settings: Those that differ from a cluster's.
    """
    with folder_of(user) as root:
        for name in ("mnt", "tmpfs", "folder"):
            (root / name).mkdir()
            os.chown(root / name, user, -1)
        usual = asdict(NETWORK) | {
            "mode": "namespaces",
            "user_namespace": user != 0,
            "scratch": str(root / "mnt"),
            "tmpfs": str(root / "tmpfs"),
            "node_addresses": [],
        }
        enter = become_nobody({place: place for place in python_places()}) if user != os.getuid() else None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(root / "socket"))
            listener.listen(8)
            runtime_settings = json.dumps(usual | settings | {"listener": listener.fileno()})
            process = subprocess.Popen(  # noqa: ASYNC220 - a fork, and no wait
                [sys.executable, "-S", "-s", "-E", str(RUNTIME_INIT), runtime_settings],
                pass_fds=[listener.fileno()],
                preexec_fn=enter,
                cwd="/",
            )
        runtime = BareRuntime(root / "socket", root / "folder", psutil.Process(process.pid))
        try:
            runtime.client = await runtime.connect()
            yield runtime
            runtime.client.close()
        finally:
            process.terminate()
            process.wait()
