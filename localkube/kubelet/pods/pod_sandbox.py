"""What the containers of a pod need before the first of them starts: an address, namespaces, files, volumes.

All of it is tried again until it succeeds, or until the pod is stopped; what is wrong meanwhile is an Event.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from localkube.api_client import ApiError
from localkube.kubelet.nodes.node import NodePool
from localkube.kubelet.pods.context import Runtime
from localkube.kubelet.volumes.volume_manager import MountedVolume, VolumeError
from localkube.runtime.client import RuntimeCallError

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 10.0


class SandboxedPod(Protocol):
    """What is prepared; ``address`` and ``volumes`` are the outcome."""

    pod: Mapping[str, Any]
    uid: str
    address: str | None
    volumes: dict[str, MountedVolume]
    pool: NodePool
    runtime: Runtime
    stopping: asyncio.Event

    def event(self, reason: str, message: str, *, warning: bool = False) -> None: ...
    def report(self) -> None: ...
    async def pause(self, seconds: float) -> bool: ...


async def prepare(worker: SandboxedPod) -> bool:
    """Make sandbox and volumes; False when the pod is stopped before that succeeds. Harmless to repeat."""
    hostname = worker.pod["spec"].get("hostname") or worker.pod["metadata"]["name"][:63]

    async def address() -> None:
        worker.address = worker.pool.address(worker.uid, wanted=worker.address)

    async def sandbox() -> None:
        request = worker.runtime.site.pod_network() | {"hostname": hostname, "address": worker.address}
        request["share_processes"] = bool(worker.pod["spec"].get("shareProcessNamespace"))
        made = worker.runtime.client.call("sandbox", pod=worker.uid, **request)
        _, worker.volumes = await asyncio.gather(made, worker.runtime.volumes.prepare(worker.pod))

    if not await _until_done(worker, address):
        return False
    _write_files(worker, hostname)
    return await _until_done(worker, sandbox)


async def release(worker: SandboxedPod) -> None:
    """Give back namespaces and address."""
    if worker.address:
        await worker.runtime.client.call("remove", pod=worker.uid)
        worker.pool.release(worker.uid)


def _write_files(worker: SandboxedPod, hostname: str) -> None:
    """Write the pod's /etc/hosts, /etc/hostname and /etc/resolv.conf, which its containers mount."""
    directory, spec = worker.runtime.tmpfs_directory(worker.uid), worker.pod["spec"]
    namespace, subdomain = worker.pod["metadata"]["namespace"], spec.get("subdomain", "")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    full = f"{hostname}.{subdomain}.{namespace}.svc.cluster.local\t" if subdomain else ""
    hosts = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    hosts.append(f"{worker.address}\t{full}{hostname}")
    for alias in spec.get("hostAliases") or []:
        hosts.append(f"{alias['ip']}\t{' '.join(alias.get('hostnames', []))}")
    search = f"{namespace}.svc.cluster.local svc.cluster.local cluster.local"
    resolver = ["nameserver 10.244.0.1", f"search {search}", "options ndots:5"]
    (directory / "hosts").write_text("\n".join(hosts) + "\n")
    (directory / "hostname").write_text(hostname + "\n")
    (directory / "resolv.conf").write_text("\n".join(resolver) + "\n")


async def _until_done(worker: SandboxedPod, attempt: Callable[[], Awaitable[None]]) -> bool:
    delay = RETRY_SECONDS
    while not worker.stopping.is_set():
        try:
            await attempt()
            return True
        except VolumeError as error:
            worker.event(error.reason, error.message, warning=True)
        except RuntimeCallError as error:
            worker.event("FailedCreatePodSandBox", error.message, warning=True)
        except ApiError as error:
            worker.event("FailedMount", str(error), warning=True)
        worker.report()
        if await worker.pause(delay):
            break
        delay = min(delay * 2, LONGEST_RETRY_SECONDS)
    return False
