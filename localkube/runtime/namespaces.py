"""The runtime's namespaces, and the PID namespace that a pod's containers may share.

Standard library only, for ``init.py``. A pod's network, UTS and IPC namespaces are in ``pod_network.py``, its
user namespace in ``user_namespace.py``, a container's own in ``container.py``.
"""

import contextlib
import os
import signal
import socket
from typing import Any, NoReturn

from localkube.runtime import syscalls
from localkube.runtime.container import ContainerStartError, find_program
from localkube.runtime.user_namespace import enter_user_namespace, limit_users

KILL_PASSES = 5


def enter_namespaces(settings: dict[str, Any]) -> None:
    """Become PID 1 of the runtime's namespaces; the calling process stays outside as its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    syscalls.die_with_parent(signal.SIGTERM)
    if settings["user_namespace"]:
        subordinate = settings.get("subordinate_ids", ())
        enter_user_namespace(subordinate)
        if subordinate:  # one of them owns each pod's user namespace
            limit_users()
    spaces = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    syscalls.unshare(spaces | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC)
    child = os.fork()
    if child:
        _wait_for(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    syscalls.die_with_parent()
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc", syscalls.PROC_FLAGS)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", settings["tmpfs"], "tmpfs", flags, "mode=700,size=512m")


def _wait_for(child: int) -> NoReturn:
    """Exit with the runtime, and kill it on SIGTERM: every process in its namespaces ends with it."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def share_processes() -> dict[str, int]:
    """Create a PID namespace for ``shareProcessNamespace``: descriptors of it and of its first process.

    The first process only sleeps: it adopts orphans, and the kernel ends all others with it. It is created
    in a fork, because a process cannot leave a PID namespace.

    Returns:
        ``pid``, the namespace, and ``pause``, a pidfd.
    """
    parent_end, child_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            socket.send_fds(child_end, [b"ok"], _start_pause())
        except OSError as error:
            child_end.send(str(error).encode())
        finally:
            os._exit(0)
    child_end.close()
    message, descriptors, _, _ = socket.recv_fds(parent_end, 4096, 2)
    # Until it executes sleep, it has a copy of this process's memory, which no pod may see.
    parent_end.recv(1)
    parent_end.close()
    os.waitpid(child, 0)
    if message != b"ok":
        message = message or b"the pod's PID namespace could not be created"
        raise ContainerStartError("sandbox", message.decode())
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return dict(zip(("pid", "pause"), descriptors, strict=True))


def _start_pause() -> list[int]:
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            # Still ignored after the exec, so that the kernel reaps its children.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            # It keeps its privileges, so that no container, which has fewer, reaches the runtime through it.
            os.execve(find_program("sleep", {}, "/"), ["sleep", "infinity"], {})
        finally:
            os._exit(127)
    return [os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC), os.pidfd_open(pid)]


def end_shared_processes(pod: dict[str, int]) -> None:
    """Kill every process of a pod that shares a PID namespace."""
    if "pause" in pod:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pod["pause"], signal.SIGKILL)


def mount_namespace(pid: int) -> int | None:
    """Read the inode number of a process's mount namespace, which its container does not share."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return None


def kill_in_mount_namespace(number: int) -> None:
    """Kill the processes that a container has left behind in a shared PID namespace."""
    for _ in range(KILL_PASSES):
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        pids = [int(name) for name in names if mount_namespace(int(name)) == number]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
