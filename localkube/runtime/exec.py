"""Start a process in the namespaces of a container that runs: ``kubectl exec``, probes and hooks.

Standard library only: the runtime runs it. The process becomes a child of the site's PID 1, in a session of
its own; the kernel ends it with the container's first process, whose PID namespace it shares.
"""

import json
import os
from typing import Any, NoReturn

from localkube.runtime.container import Launched, become, enter_limits, launched, stage
from localkube.runtime.syscalls import setns

NAMESPACES = ("net", "uts", "ipc", "pid", "mnt")


def join(order: dict[str, Any], fds: dict[str, int], *, container: int) -> Launched:
    """Start a command in a running container.

    Args:
        order: ``argv``, ``env``, ``cwd`` and ``tty``; ``groups`` or ``cores``, see ``enter_limits``.
        fds: ``stdin``, ``stdout`` and ``stderr``; not used with a terminal.
        container: The process id of the container's first process, which has not been reaped.

    Raises:
        LaunchError: With the stage that failed and a sentence.
    """
    return launched(lambda writer: _helper(order, fds, container, writer))


def _helper(order: dict[str, Any], fds: dict[str, int], container: int, writer: int) -> NoReturn:
    """Enter the container's namespaces and leave a child there."""
    try:
        with stage(writer, "sandbox"):
            enter_limits(order)
            paths = [f"/proc/{container}/ns/{name}" for name in NAMESPACES]
            # The mount namespace comes last: behind it /proc is the container's.
            for space in [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]:
                setns(space)
        pid = os.fork()
        if pid == 0:
            if not order.get("tty"):  # a terminal makes its own
                os.setsid()
            become(order, fds, writer)
        os.write(writer, json.dumps({"pid": pid}).encode() + b"\n")
    finally:
        os._exit(0)
