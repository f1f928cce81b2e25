"""How the runtime becomes the first process of a site, and who waits for it outside."""

import os
import signal
from typing import Any, NoReturn

from localkube.runtime import syscalls


def enter_site(settings: dict[str, Any]) -> None:
    """Return as PID 1 of the site's namespaces; the caller's process stays outside as its parent."""
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
        _outlive(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    syscalls.die_with_parent()
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc", syscalls.PROC_FLAGS)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", settings["tmpfs"], "tmpfs", flags, "mode=700,size=512m")


def _outlive(child: int) -> NoReturn:
    """Stay until the site is gone, and end it on SIGTERM: who waits for this process waits for all."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
