"""Programs of the site itself, such as the API server: its network and processes, the host's file system."""

import os
import signal
from typing import Any, NoReturn

from localkube.runtime import syscalls


def start(order: dict[str, Any], fds: list[int], *, null: int, plain: bool) -> int:
    """Start a program whose output goes to a file; return its process id.

    Args:
        order: ``argv``, ``env``, ``cwd`` and ``log``, the file.
        fds: Descriptors that it gets; their numbers stand in ``FD_0`` and so on.
        null: Its standard input.
        plain: There are no namespaces, so the kernel has to end it with this process.
    """
    output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid = os.fork()
        if not pid:
            _become(order, fds, streams=(null, output, output), plain=plain)
    finally:
        os.close(output)
    return pid


def _become(order: dict[str, Any], fds: list[int], *, streams: tuple[int, ...], plain: bool) -> NoReturn:
    try:
        os.setsid()
        if plain:
            syscalls.die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for descriptor in fds:
            os.set_inheritable(descriptor, True)
        os.umask(0o077)
        os.chdir(order.get("cwd", "/"))
        names = {f"FD_{position}": str(descriptor) for position, descriptor in enumerate(fds)}
        os.execve(order["argv"][0], order["argv"], order["env"] | names)
    except OSError as error:
        os.write(2, f"cannot start {order['argv'][0]}: {error}\n".encode())
    finally:
        os._exit(127)
