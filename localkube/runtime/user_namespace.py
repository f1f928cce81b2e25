"""User namespaces: the runtime's own, where the cluster's user is not root, and those of pods.

Standard library only.
"""

import os
from collections.abc import Sequence

from localkube.runtime import syscalls
from localkube.runtime.container_spec import LinuxIdMapping

# Ids of a user namespace with subordinate ids: root, who is the user, and the others.
MANY_IDS = 65536


def enter_user_namespace(subordinate: Sequence[int] = ()) -> None:
    """Enter a new user namespace as its root, who outside is still the user.

    Args:
        subordinate: The first of the user's subordinate users and groups, of which it gets as many as a
            container may want; without them, it has no other id.

    Raises:
        OSError: The kernel refuses, or newuidmap does.

    Source: https://man7.org/linux/man-pages/man1/newuidmap.1.html
    """
    own = os.getuid(), os.getgid()
    if not subordinate:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {own[0]} 1"),
            ("gid_map", f"0 {own[1]} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        return
    entered, child = os.pipe2(os.O_CLOEXEC), 0
    target = os.getpid()
    child = os.fork()
    if child == 0:
        _map_ids(target, entered, own, subordinate)
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(entered[1], b"x")
    finally:
        for end in entered:
            os.close(end)
        _, status = os.waitpid(child, 0)
    if status:
        raise OSError(f"newuidmap or newgidmap failed for {MANY_IDS - 1} ids from {subordinate}")


def _map_ids(target: int, entered: tuple[int, int], own: Sequence[int], subordinate: Sequence[int]) -> None:
    """Map the ids of a process that has entered a user namespace, from outside of it."""
    status = 1
    try:
        os.close(entered[1])
        if os.read(entered[0], 1):
            for program, first, more in zip(("newuidmap", "newgidmap"), own, subordinate, strict=True):
                words = [program, target, 0, first, 1, 1, more, MANY_IDS - 1]
                if os.spawnvp(os.P_WAIT, program, list(map(str, words))):
                    return
            status = 0
    finally:
        os._exit(status)


def new_user_namespace(users: LinuxIdMapping, groups: LinuxIdMapping | None = None) -> int:
    """Create a user namespace, over which the caller keeps all privileges, and open it.

    The process that it is created with ends at once; the caller reaps it when it comes to that.

    Args:
        users: Its users.
        groups: Its groups, if their numbers are others.

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
        for kind, ids in (("uid", users), ("gid", groups or users)):
            with open(f"/proc/{child}/{kind}_map", "w") as file:
                if ids.host_id or ids.size == 1:
                    file.write(f"{ids.container_id} {ids.host_id} {ids.size}")
                else:  # of the runtime's own namespace, in which root's id is apart
                    file.write(f"0 0 1\n1 1 {ids.size - 1}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writer)
