"""User namespaces: the runtime's own, where the cluster's user is not root, and those of pods.

Standard library only.
"""

import os
import resource
from collections.abc import Sequence

from localkube.runtime import syscalls
from localkube.runtime.container_spec import LinuxIdMapping

# Ids of a user namespace with subordinate ids: root, who is the user, and the others.
MANY_IDS = 65536
# What the kernel counts per user: in each user namespace (with the machine's limit), and by resource limits.
COUNTED = {
    f"/proc/sys/user/max_inotify_{kind}": f"/proc/sys/fs/inotify/max_user_{kind}"
    for kind in ("instances", "watches")
}
COUNTED_BY_LIMITS = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)
SHARE = 8
# The kubelet's podPidsLimit, where no cgroup enforces it.
MAX_PROCESSES = 4096


def enter_user_namespace(subordinate: Sequence[int] = ()) -> None:
    """Enter a new user namespace as its root, which outside is still the user.

    Args:
        subordinate: The first of the user's subordinate uids and gids, of which it gets the range that a
            container needs; without them, it has no other id.

    Source: https://man7.org/linux/man-pages/man1/newuidmap.1.html
    """
    ids = os.getuid(), os.getgid()
    if not subordinate:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {ids[0]} 1"),
            ("gid_map", f"0 {ids[1]} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        return
    entered, child = os.pipe2(os.O_CLOEXEC), 0
    target = os.getpid()
    child = os.fork()
    if child == 0:
        _map_ids(target, entered, ids, subordinate)
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
            for program, user, first in zip(("newuidmap", "newgidmap"), own, subordinate, strict=True):
                argv = [program, target, 0, user, 1, 1, first, MANY_IDS - 1]
                if os.spawnvp(os.P_WAIT, program, list(map(str, argv))):
                    return
            status = 0
    finally:
        os._exit(status)


def new_user_namespace(
    users: LinuxIdMapping, groups: LinuxIdMapping | None = None, *, of_pod: bool = False
) -> int:
    """Create a user namespace, over which the caller keeps all privileges, and open it.

    The child process that creates it exits at once; the caller's next wait reaps it.

    Args:
        users: Its users.
        groups: Its groups, if their numbers differ.
        of_pod: Let one of its own users create it, so that the kernel charges the pod's inotify instances,
            pending signals and so on to that user, not to the caller; with a single id, limit it to a share.

    Source: https://man7.org/linux/man-pages/man7/user_namespaces.7.html, fs.inotify and user in /proc/sys
    """
    hold, created = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    owner = users.host_id + _any_below(users.size) if of_pod and users.size > 1 else 0
    child = syscalls.fork_for_system_calls()
    if child == 0:
        try:
            os.close(hold[1])
            _create(owner, shared=of_pod and not users.host_id)
            os.write(created[1], b"x")
            os.read(hold[0], 1)
        except OSError as error:
            os.write(created[1], str(error).encode())
        finally:
            os._exit(0)
    os.close(hold[0])
    os.close(created[1])
    try:
        if (answer := os.read(created[0], 4096)) != b"x":
            raise OSError(f"a user namespace could not be created: {answer.decode()}")
        for kind, ids in (("uid", users), ("gid", groups or users)):
            with open(f"/proc/{child}/{kind}_map", "w") as file:
                if ids.host_id or ids.size == 1:
                    file.write(f"{ids.container_id} {ids.host_id} {ids.size}")
                else:  # root's id is mapped separately in the runtime's own namespace
                    file.write(f"0 0 1\n1 1 {ids.size - 1}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(hold[1])
        os.close(created[0])


def _any_below(size: int) -> int:
    """Choose one of 1, 2 … at random; the module ``random`` would add 40 pages to the memory of each fork."""
    return 1 + int.from_bytes(os.urandom(4), "little") % (size - 1)


def _create(owner: int, *, shared: bool) -> None:
    """Enter a new user namespace as ``owner``; with ``shared``, it counts for the cluster's user as well."""
    if owner and shared:
        limit_resources()
    if owner:
        limit_processes()
        syscalls.set_effective_user(owner)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    if shared and not owner:
        limit_users()


def limit_users() -> None:
    """Give each user of the caller's user namespace a share of what the kernel counts for users."""
    for inside, machine in COUNTED.items():
        with open(machine) as file:
            limit = int(file.read())
        with open(inside, "w") as file:
            file.write(str(limit // SHARE))


def limit_resources() -> None:
    """Limit the processes of a pod to a share of what the kernel counts for the cluster's user.

    Descriptors in flight are counted for the user as a whole, and compared with the sender's RLIMIT_NOFILE:
    the runtime, which has twice the limit of pods, can always pass some.
    """
    for kind in COUNTED_BY_LIMITS:
        _lower(kind, SHARE)
    _lower(resource.RLIMIT_NOFILE, 2)


def limit_processes() -> None:
    """Limit the processes and threads of this user in this user namespace, and in one created in it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = MAX_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, MAX_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _lower(kind: int, divisor: int) -> None:
    soft, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(kind, (min(soft, hard // divisor), hard // divisor))
