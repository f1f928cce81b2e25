"""A process namespace that the containers of a pod share, for ``shareProcessNamespace``.

Its first process does nothing but to be there: orphans fall to it, and the kernel ends the rest with it. A
container that ends in such a namespace does not take along what it has started; that is done here.

Standard library only: the runtime runs it.
"""

import contextlib
import os
import signal

from localkube.runtime.container import find_program
from localkube.runtime.syscalls import CLONE_NEWPID, unshare

PASSES = 5


def hold() -> dict[str, int]:
    """Make a process namespace with a first process; return descriptors of both, ``pid`` and ``pause``."""
    unshare(CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            # Ignored beyond the exec: the kernel then reaps for it.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            # It keeps its privileges, so that no container, which has fewer, reaches the site through it.
            os.execve(find_program("sleep", {}, "/"), ["sleep", "infinity"], {})
        finally:
            os._exit(127)
    return {"pid": os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC), "pause": os.pidfd_open(pid)}


def let_go(pod: dict[str, int]) -> None:
    """End the namespace of a pod, if it has one, and every process in it."""
    if "pause" in pod:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pod["pause"], signal.SIGKILL)


def mounts_of(pid: int) -> int | None:
    """Return the number of a process's mount namespace, which its container has for itself."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return None


def end_rest(mounts: int) -> None:
    """End what a container has left behind: all that has its mount namespace."""
    for _ in range(PASSES):
        rest = [
            int(name) for name in os.listdir("/proc") if name.isdigit() and mounts_of(int(name)) == mounts
        ]
        if not rest:
            return
        for pid in rest:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
