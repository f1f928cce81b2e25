"""The launcher: a small process that forks every process that enters a pod.

The runtime's PID 1 holds the data of all pods: environments, journals, descriptors. A fork of it that joins a
pod would carry them into that pod. The launcher holds none of them: it passes the socket of each request to a
fork, and only the fork reads the request. It never blocks, so no pod can delay another's start. The runtime's
side is ``launches.py``; the forkserver serves in the same way.

A program of its own, run with ``python -S`` and the standard library alone.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

if __name__ == "__main__":
    # In place of this folder, whose modules would hide the standard library's.
    sys.path[0] = os.path.abspath(__file__).removesuffix("/localkube/runtime/launcher.py")

from localkube.runtime import container, messages, plain, syscalls
from localkube.runtime.container import stage
from localkube.runtime.container_spec import ContainerSpec, PlainPod

# Carries out a request, with its descriptors by name; the last argument is the descriptor for its reports.
Helper = Callable[[dict[str, Any], dict[str, int], int], NoReturn]


def serve(sock: socket.socket, helper: Helper, *, executes: bool = False) -> None:
    """Fork a helper for each request, until the runtime closes its end of ``sock``.

    A request is a socket. The helper receives its content from it and reports its own pid, then that of the
    process which it leaves behind, or a stage and a message; the socket is closed when that process has
    executed its program.

    Args:
        executes: Helpers execute a program. A helper for a new PID namespace is then itself the first process
            of it, and the next such helper is forked ahead.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    spare: tuple[int, socket.socket] | None = None
    while received := messages.receive(sock):
        header, (request,) = received
        first = executes and header["own_processes"]
        if not first:
            _hand_over(_fork_helper(sock, helper), request)
            os.close(request)
        else:
            if spare is None or not _hand_over(spare, request):
                _hand_over(_fork_helper(sock, helper, first=True), request)
            # Before the next fork, which would keep it open.
            os.close(request)
            spare = _fork_helper(sock, helper, first=True)


def _fork_helper(sock: socket.socket, helper: Helper, *, first: bool = False) -> tuple[int, socket.socket]:
    """Fork a helper that waits for its request; it ends without one when its socket is closed here.

    Args:
        first: It is the first process of a new PID namespace.
    """
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = syscalls.fork_first_process() if first else os.fork()
    if pid:
        child_end.close()
        return (pid if first else 0), parent_end
    sock.close()
    parent_end.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    received = messages.receive(child_end)
    child_end.close()
    if received is None:
        os._exit(0)
    header, (request,) = received
    return _help(request, helper, header["pid"])


def _hand_over(spare: tuple[int, socket.socket], request: int) -> bool:
    """Send a helper its request, and its pid if it cannot know that; False if it has been killed."""
    pid, helper = spare
    with helper:
        try:
            messages.send(helper, {"pid": pid}, [request])
        except ConnectionError:
            return False
    return True


def _help(writer: int, helper: Helper, pid: int) -> NoReturn:
    """Carry out one request and exit; a container that the forkserver has loaded leaves by an exception."""
    try:
        with stage(writer, "sandbox"):
            os.write(writer, b'{"helper": %d}\n' % (pid or os.getpid()))
            with socket.socket(fileno=os.dup(writer)) as sock:
                received = messages.receive(sock)
            if received is None:
                raise ConnectionResetError("the runtime has ended")
            request, descriptors = received
            fds = dict(zip(request["fds"], descriptors, strict=True))
        helper(request | {"pid": pid}, fds, writer)
    finally:
        os._exit(126)


def launch(
    request: dict[str, Any], fds: dict[str, int], writer: int, main: Callable[[], NoReturn] | None = None
) -> NoReturn:
    """Start a container, or a command in the one whose pid is ``container``.

    Args:
        main: Called in place of the command, when the caller has already loaded it.
    """
    os.umask(0o022)  # not the parent's: mount points are created with it
    with stage(writer, "sandbox"):
        spec = ContainerSpec.from_dict(request["spec"])
        pod = PlainPod(**request["plain"]) if request["plain"] else None
        inside = request.get("container")
    if pod:
        plain.create(spec, fds, writer, pod=pod, init=request["init"], main=main, first=inside is None)
    if inside:
        container.join(spec, fds, inside, writer)
    container.create(spec, fds, request["scratch"], main, writer, pid=request["pid"])


def main() -> None:
    parent = os.getppid()
    syscalls.die_with_parent()
    if os.getppid() != parent:
        return
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    # The objects created so far are permanent; a collection would copy pages that short-lived forks share.
    gc.freeze()
    gc.disable()
    serve(sock, launch, executes=True)


if __name__ == "__main__":
    main()
