"""Pod termination: hooks, SIGTERM, SIGKILL, and the order of a pod's containers.

The grace period covers everything: the preStop hook, the wait for other containers, the time after SIGTERM.
Sidecars are stopped after the containers that they serve, in the reverse order of their start.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
"""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from localkube.kubelet.containers.process import Process
from localkube.kubelet.status.restart_policy import is_sidecar
from localkube.tasks import wait_for_first

# The minimum after hooks and waiting have used up the grace period, as in the kubelet.
MIN_SECONDS = 2.0
Kill = Callable[[Process, int], Awaitable[None]]


def signal_number(name: str) -> int:
    """Parse the number of a stop signal, such as ``SIGQUIT`` or ``3``; SIGTERM for none."""
    if name.isdigit():
        return int(name)
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    if match := re.fullmatch(r"SIGRT(MIN|MAX)([+-]\d+)?", full):
        return int(getattr(signal, f"SIGRT{match[1]}")) + int(match[2] or 0)
    return int(getattr(signal, full, signal.SIGTERM))


def waits_for(pod: Mapping[str, Any], name: str) -> list[str]:
    """List the containers that must have ended before this one is stopped.

    Example:
        >>> sidecar = {"name": "log", "restartPolicy": "Always"}
        >>> waits_for({"spec": {"initContainers": [sidecar], "containers": [{"name": "main"}]}}, "log")
        ['main']
    """
    inits = pod["spec"].get("initContainers") or []
    sidecars = [container["name"] for container in inits if is_sidecar(container)]
    if name not in sidecars:
        return []
    main = [container["name"] for container in pod["spec"]["containers"]]
    return main + sidecars[sidecars.index(name) + 1 :]


async def terminate(
    process: Process,
    *,
    grace: float,
    kill: Kill,
    hook: Callable[[], Awaitable[None]] | None = None,
    after: Iterable[Process] = (),
    stop_signal: int = signal.SIGTERM,
) -> None:
    """Terminate a container: its hook, the wait for others, its stop signal, and SIGKILL after ``grace``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    if grace > 0 and hook:
        await _within(process, deadline, hook())
    predecessors = list(after)
    if grace > 0 and predecessors:
        await _within(process, deadline, asyncio.gather(*(earlier.wait() for earlier in predecessors)))
    if grace > 0 and process.running:
        if hook or predecessors:
            deadline = max(deadline, loop.time() + MIN_SECONDS)
        await kill(process, stop_signal)
    await terminate_by(process, deadline, kill=kill)


async def terminate_by(process: Process, deadline: float, *, kill: Kill) -> None:
    """Wait until a process has ended, and kill it at ``deadline``, of the loop's clock."""
    try:
        async with asyncio.timeout_at(deadline):
            await process.wait()
    except TimeoutError:
        await kill(process, signal.SIGKILL)
        await process.wait()


async def _within(process: Process, deadline: float, work: Awaitable[Any]) -> None:
    """Wait for ``work``, at most until ``deadline`` and the process's own end."""
    await wait_for_first(work, process.wait(), seconds=deadline - asyncio.get_running_loop().time())
