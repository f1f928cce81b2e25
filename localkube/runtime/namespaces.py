"""The runtime's namespaces, a pod's user namespace, and the process namespace that its containers may share.

Standard library only, for ``init.py``. A pod's network, UTS and IPC namespaces are in ``pod_network.py``, a
container's own in ``container.py``.
"""

import contextlib
import os
import signal
import socket
from typing import Any, NoReturn

from localkube.runtime import syscalls
from localkube.runtime.container import ContainerStartError, find_program
from localkube.runtime.container_spec import LinuxIdMapping

KILL_PASSES = 5


def enter_namespaces(settings: dict[str, Any]) -> None:
    """Become PID 1 of the runtime's namespaces; the calling process stays outside as its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    syscalls.die_with_parent(signal.SIGTERM)
    user, group = os.getuid(), os.getgid()
    if settings["user_namespace"]:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
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
    """Exit with the runtime, and kill it on SIGTERM: its end is that of every process in its namespaces."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def new_user_namespace(mapping: LinuxIdMapping) -> int:
    """Create a user namespace, over which the caller keeps all privileges, and open it.

    The process that it is created with ends at once; the caller reaps it when it comes to that.

    Raises:
        OSError: The kernel refuses, or the ids are not the caller's to give.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = syscalls.fork_into_user_namespace()
    if child == 0:
        try:
            os.close(writer)
            os.read(reader, 1)
        finally:
            os._exit(0)
    os.close(reader)
    try:
        for kind in ("uid", "gid"):
            line = f"{mapping.container_id} {mapping.host_id} {mapping.size}"
            _write(f"/proc/{child}/{kind}_map", line)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writer)


def share_processes() -> dict[str, int]:
    """Create a process namespace for ``shareProcessNamespace``: descriptors of it and of its first process.

    The first process only sleeps: orphans fall to it, and the kernel ends all others with it. It is created
    in a fork, because a process cannot leave a process namespace.

    Returns:
        ``pid``, the namespace, and ``pause``, a pidfd.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            socket.send_fds(theirs, [b"ok"], _start_pause())
        except OSError as error:
            theirs.send(str(error).encode())
        finally:
            os._exit(0)
    theirs.close()
    message, descriptors, _, _ = socket.recv_fds(ours, 4096, 2)
    # Until it sleeps, it has this process's memory, and nobody may be in there with it.
    ours.recv(1)
    ours.close()
    os.waitpid(child, 0)
    if message != b"ok":
        message = message or b"the pod's process namespace could not be made"
        raise ContainerStartError("sandbox", message.decode())
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return dict(zip(("pid", "pause"), descriptors, strict=True))


def _start_pause() -> list[int]:
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            # Ignored beyond the exec: the kernel then reaps for it.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            # It keeps its privileges, so that no container, which has fewer, reaches the runtime through it.
            os.execve(find_program("sleep", {}, "/"), ["sleep", "infinity"], {})
        finally:
            os._exit(127)
    return [os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC), os.pidfd_open(pid)]


def end_shared_processes(pod: dict[str, int]) -> None:
    """End every process of a pod that shares a process namespace."""
    if "pause" in pod:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pod["pause"], signal.SIGKILL)


def mount_namespace(pid: int) -> int | None:
    """The number of a process's mount namespace, which its container has for itself."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return None


def kill_in_mount_namespace(number: int) -> None:
    """Kill what a container has left behind in a process namespace that it shares."""
    for _ in range(KILL_PASSES):
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        rest = [int(name) for name in names if mount_namespace(int(name)) == number]
        if not rest:
            return
        for pid in rest:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
