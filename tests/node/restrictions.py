"""Restrictions of a command: full and read-only disks, another user, refused namespaces.

Each function returns a ``preexec_fn`` for ``subprocess``: it changes the child process alone.
"""

import ctypes
import os
import signal
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from localkube.runtime.syscalls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    RESERVED_SIGNALS,
    SYS_RT_SIGACTION,
    mount,
    unshare,
)

NOBODY = 65534
REPOSITORY = Path(__file__).resolve().parents[2]
Enter = Callable[[], None]


def disk(place: Path, *, size: str = "1m", read_only: bool = False) -> Enter:
    """Return how to see a small or a read-only disk at ``place``."""

    def enter() -> None:
        _own_mounts()
        mount("tmpfs", str(place), "tmpfs", MS_RDONLY if read_only else 0, f"mode=700,size={size}")

    return enter


def ignored_signals() -> None:
    """Live as below ``nohup`` and posix_spawn, which ignores the C library's own signals."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    action = (1).to_bytes(8, sys.byteorder) + bytes(24)  # the kernel's struct sigaction with SIG_IGN
    for number in RESERVED_SIGNALS:
        assert ctypes.CDLL(None).syscall(SYS_RT_SIGACTION, number, action, None, 8) == 0


def without_namespaces() -> Enter:
    """Return how to live on a machine whose administrator has set ``user.max_user_namespaces`` to 0.

    The user inside is not root, whoever it is outside.
    """

    def enter() -> None:
        user, group = os.getuid(), os.getgid()
        unshare(CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {user} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {group} 1")
        _write("/proc/sys/user/max_user_namespaces", "0")

    return enter


def become_nobody(places: Mapping[Path, Path]) -> Enter:
    """Return how root becomes the user nobody, who sees ``places`` even below directories closed to others.

    Args:
        places: For each path that nobody needs, the directory that is to be seen there. Closed directories
            on the way are replaced by empty ones, in a mount namespace of its own.
    """
    return become(NOBODY, NOBODY, places)


def become(user: int, group: int, places: Mapping[Path, Path]) -> Enter:
    """Return how root becomes another user, for whom ``places`` are as for `become_nobody`."""
    doors = {door for path in places if (door := _closed(path))}

    def enter() -> None:
        unshare(CLONE_NEWNS)
        mount(None, "/", None, MS_REC | MS_PRIVATE)
        sources = {path: os.open(source, os.O_PATH) for path, source in places.items()}
        for door in doors:
            mount("tmpfs", str(door), "tmpfs", 0, "mode=755")
        for path, descriptor in sources.items():
            path.mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", str(path), None, MS_BIND | MS_REC)
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)

    return enter


def python_places() -> list[Path]:
    """Return the directories that this interpreter, its packages and this code are read from."""
    return [Path(place).resolve() for place in (sys.prefix, sys.base_prefix, REPOSITORY)]


def _own_mounts() -> None:
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0))
    if user:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def _closed(path: Path) -> Path | None:
    """Return the first directory above ``path`` that others may not enter."""
    closed = [step for step in path.parents if step.exists() and not step.stat().st_mode & stat.S_IXOTH]
    return closed[-1] if closed else None


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)
