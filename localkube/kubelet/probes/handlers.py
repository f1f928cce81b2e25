"""What a probe or a hook does once: a command in the container, an HTTP request, a connection, a gRPC call.

The kubelet's handlers, in its words, since people search for its sentences. When to ask, and what follows
from the answer, is in ``probes.py`` and ``hooks.py``.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#probe-check-methods
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localkube.kubelet.containers.environment import expand
from localkube.network.addresses import Addresses
from localkube.runtime.client import RuntimeCallError

log = logging.getLogger(__name__)

OUTPUT_BYTES = 10 * 1024
# Runs a command in a container, known by its identity, within so many seconds; None is without a limit.
# Returns the exit code and the output; raises TimeoutError, or RuntimeCallError if the container has ended.
Execute = Callable[[str, list[str], float | None], Awaitable[tuple[int, bytes]]]


class HandlerError(Exception):
    """The handler could not be carried out, which says nothing of the container."""


@dataclass(frozen=True)
class Answer:
    """What a container answered; ``warning`` for a success that somebody should hear of."""

    healthy: bool
    output: str = ""
    warning: bool = False


@dataclass(frozen=True)
class Target:
    """Which run of which container is asked, and where its pod is."""

    identity: str
    container: Mapping[str, Any]
    address: str


class Handlers:
    """Carries out the actions of probes and hooks.

    Args:
        addresses: Where the cluster's addresses are found.
        execute: How a command is run in a container.
        version: Kubernetes' version, ``v1.36.3``, for the user agent.
    """

    def __init__(self, addresses: Addresses, *, execute: Execute, version: str) -> None:
        self._addresses = addresses
        self._execute = execute
        self._agent = ".".join(version.removeprefix("v").split(".")[:2])

    async def probe(self, action: Mapping[str, Any], target: Target, *, timeout: float) -> Answer:
        """Ask once and return the answer.

        Args:
            action: A v1.Probe, of which one handler is set.
            target: Who is asked.
            timeout: Seconds.

        Raises:
            HandlerError: It could not be asked.
        """
        if action.get("exec"):
            return await self._command(action["exec"].get("command") or [], target, timeout)
        if action.get("httpGet"):
            return await self._http(action["httpGet"], target, timeout=timeout, purpose="probe")
        if action.get("tcpSocket"):
            host = action["tcpSocket"].get("host") or target.address
            return await self._tcp(host, port_number(action["tcpSocket"]["port"], target.container), timeout)
        if action.get("grpc"):
            # Only here: the library is large, and hardly anybody needs it.
            from localkube.kubelet.probes.grpc_handler import check

            port, service = int(action["grpc"]["port"]), action["grpc"].get("service") or ""
            reached = self._addresses.reach(target.address, port)
            named = f"{target.address}:{port}"
            healthy, output = await check(
                *reached, named=named, service=service, timeout=timeout, agent=f"kube-probe/{self._agent}"
            )
            return Answer(healthy, output)
        raise HandlerError("missing probe handler")

    async def hook(self, action: Mapping[str, Any], target: Target) -> None:
        """Carry out a lifecycle hook; it may take as long as it likes.

        Raises:
            HandlerError: It failed.
        """
        if action.get("exec"):
            answer = await self._command(action["exec"].get("command") or [], target, None)
        elif action.get("httpGet"):
            answer = await self._http(action["httpGet"], target, timeout=None, purpose="lifecycle")
        elif action.get("sleep"):
            await asyncio.sleep(action["sleep"].get("seconds", 0))
            return
        else:
            raise HandlerError("invalid handler")
        if not answer.healthy:
            raise HandlerError(answer.output)

    async def _command(self, command: list[str], target: Target, timeout: float | None) -> Answer:
        static = {e["name"]: e["value"] for e in target.container.get("env") or [] if e.get("value")}
        argv = [expand(word, static) for word in command]
        try:
            code, output = await self._execute(target.identity, argv, timeout)
        except TimeoutError:
            return Answer(False, f'command timed out: "{" ".join(argv)}" timed out after {timeout:g}s')
        except RuntimeCallError as error:
            raise HandlerError(error.message) from error
        return Answer(code == 0, output[:OUTPUT_BYTES].decode(errors="replace"))

    async def _http(
        self, action: Mapping[str, Any], target: Target, *, timeout: float | None, purpose: str
    ) -> Answer:
        from localkube.kubelet.probes.http_handler import get

        host = action.get("host") or target.address
        status, output = await get(
            scheme=(action.get("scheme") or "http").lower(),
            host=host,
            port=port_number(action["port"], target.container),
            path=action.get("path") or "/",
            headers=[(h["name"], h.get("value", "")) for h in action.get("httpHeaders") or []],
            agent=f"kube-{purpose}/{self._agent}",
            timeout=timeout,
            reach=self._addresses.reach,
        )
        if status is None:
            return Answer(False, output)
        if purpose == "lifecycle":
            # A hook is heard, whatever is answered to it.
            return Answer(True)
        if 300 <= status < 400:
            return Answer(True, f"Probe terminated redirects, Response body: {output}", warning=True)
        if 200 <= status < 300:
            return Answer(True, output)
        return Answer(False, f"HTTP probe failed with statuscode: {status}")

    async def _tcp(self, host: str, port: int, timeout: float) -> Answer:
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(*self._addresses.reach(host, port))
        except (TimeoutError, OSError) as error:
            return Answer(False, dial_error(host, port, error))
        writer.close()
        return Answer(True)


def port_number(port: int | str, container: Mapping[str, Any]) -> int:
    """Return the number of a port that may be given by its name.

    Raises:
        HandlerError: The container has no port of that name.

    Example:
        >>> port_number("web", {"ports": [{"name": "web", "containerPort": 80}]})
        80
    """
    named = {p.get("name"): p["containerPort"] for p in container.get("ports") or []}
    try:
        number = port if isinstance(port, int) else int(named.get(port, port))
    except ValueError:
        raise HandlerError(f"port {port} not found") from None
    if not 0 < number < 65536:
        raise HandlerError(f"invalid port number: {number}")
    return number


def dial_error(host: str, port: int, error: BaseException) -> str:
    """Return why a connection could not be made, as the kubelet says it."""
    if isinstance(error, TimeoutError):
        reason = "i/o timeout"
    elif isinstance(error, ConnectionRefusedError):
        reason = "connect: connection refused"
    else:
        reason = f"connect: {getattr(error, 'strerror', None) or error}".lower()
    return f"dial tcp {host}:{port}: {reason}"
