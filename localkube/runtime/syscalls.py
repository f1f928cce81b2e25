"""The system calls that Python 3.11 does not offer: namespaces, mounts, privileges.

Standard library only, like everything that the runtime imports. Failures are OSErrors that name the call.
"""

import ctypes
import errno
import os
import signal
from collections.abc import Iterable

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT = 0x00008000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_UNBINDABLE, MS_PRIVATE = 16384, 1 << 17, 1 << 18
PROC_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
MNT_DETACH = 2
FALLOC_FL_KEEP_SIZE = 1
SYS_CLONE, SYS_PIVOT_ROOT, SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 56, 155, 428, 429, 442
SYS_RT_SIGACTION, RESERVED_SIGNALS = 13, (32, 33)
SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT, SYS_OPENAT2 = 430, 431, 432, 437
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
FS_CLOEXEC, FSCONFIG_SET_FLAG, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 0, 1, 6
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 1, 2, 4, 8, 16
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
MOUNT_ATTR_IDMAP = 0x100000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
SECCOMP_MODE_FILTER, FILTER_INSTRUCTION = 2, 8
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAPABILITY_VERSION_3 = 0x20080522
# In the order of their numbers: https://man7.org/linux/man-pages/man7/capabilities.7.html
_NAMES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG
    MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM
    BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = {f"CAP_{name}": number for number, name in enumerate(_NAMES.split())}
# containerd's defaults without NET_RAW, by which a pod could forge another's packets, and without MKNOD and
# AUDIT_WRITE, which no user namespace has.
_DEFAULT = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT SETFCAP"
DEFAULT_CAPABILITIES = tuple(f"CAP_{name}" for name in _DEFAULT.split())
LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
# Found here, so that no fork has to.
for _name in ("syscall", "prctl", "capset", "setns", "unshare", "mount", "umount2", "setfsgid", "setfsuid"):
    getattr(_libc, _name, None)
# Calls that hold the GIL, as a fork must.
_with_lock, _python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
if os.uname().machine == "aarch64":
    SYS_CLONE, SYS_PIVOT_ROOT, SYS_RT_SIGACTION = 220, 41, 134


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def fork_for_system_calls() -> int:
    """Fork; the child may only make system calls, and end by ``os._exit``.

    Python's own fork leaves the child holding the locks of the interpreter and the allocator.
    """
    return os.fork()


def set_effective_user(uid: int) -> None:
    """Become a user and keep all capabilities, and access to the files of this process in /proc."""
    _libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.seteuid(uid)
    set_dumpable(True)


def fork_first_process() -> int:
    """Fork a single-threaded process; the child is the first process of a new PID namespace.

    Its parent is this process's parent, which reaps it. It may start no threads: the C library does not know
    that it was forked.
    """
    _python.PyOS_BeforeFork()
    flags = CLONE_PARENT | CLONE_NEWPID | signal.SIGCHLD
    child = _with_lock.syscall(SYS_CLONE, flags, None, None, None, None)
    if child:
        _python.PyOS_AfterFork_Parent()
    else:
        _python.PyOS_AfterFork_Child()
    _check(child < 0, "clone")
    return child


def setns(descriptor: int, kind: int = 0) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3])
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel signal this process when its parent ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become a subreaper, which adopts orphaned descendants; this persists across an exec."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def reserve(descriptor: int, size: int) -> None:
    """Allocate disk space for the first ``size`` bytes of a file, without changing its length."""
    done = _libc.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))
    if done and ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS):
        _check(done, "fallocate")


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """Open a path from an open directory, resolved as the ``RESOLVE_…`` flags say.

    Raises:
        OSError: ENOSYS before Linux 5.6.
    """
    how = (ctypes.c_uint64 * 3)(flags, 0, resolve)
    descriptor = _libc.syscall(SYS_OPENAT2, directory, os.fsencode(path), how, ctypes.sizeof(how))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return descriptor


def new_mount(kind: str, options: Iterable[str], attributes: int) -> int:
    """Make a mount of a new file system; return a descriptor of it, for ``move_mount``.

    Args:
        options: Options of mount(8), such as ``mode=755``.
    """
    context = _libc.syscall(SYS_FSOPEN, os.fsencode(kind), FS_CLOEXEC)
    _check(context < 0, f"fsopen {kind}")
    try:
        for option in options:
            name, _, text = option.partition("=")
            command, value = (FSCONFIG_SET_STRING, os.fsencode(text)) if text else (FSCONFIG_SET_FLAG, None)
            _check(
                _libc.syscall(SYS_FSCONFIG, context, command, os.fsencode(name), value, 0),
                f"fsconfig {option}",
            )
        _check(_libc.syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0), f"create {kind}")
        mount = _libc.syscall(SYS_FSMOUNT, context, FS_CLOEXEC, attributes)
        _check(mount < 0, f"fsmount {kind}")
        return mount
    finally:
        os.close(context)


def clone_tree(source: int | str) -> int:
    """Clone the mounts at an open directory or file, or at a path; return a descriptor for ``move_mount``."""
    place, path = (AT_FDCWD, os.fsencode(source)) if isinstance(source, str) else (source, b"")
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | (0 if path else AT_EMPTY_PATH)
    tree = _libc.syscall(SYS_OPEN_TREE, place, path, flags)
    _check(tree < 0, f"open_tree {os.fsdecode(path)}".rstrip())
    return tree


def restrict_mount(mount: int, attributes: int, *, recursive: bool = True) -> None:
    """Set attributes of a mount, by its descriptor, and of all mounts below it.

    Raises:
        OSError: ENOSYS before Linux 5.12.
    """
    _set_attributes(mount, attributes, 0, AT_RECURSIVE if recursive else 0)


def map_ids(tree: int, user_namespace: int) -> None:
    """Map the ids of a detached mount: the ids on the disk are those of the user namespace.

    Raises:
        OSError: The kernel (before Linux 5.12) or the file system cannot do it, or the caller may not.
    """
    _set_attributes(tree, MOUNT_ATTR_IDMAP, user_namespace, 0)


def _set_attributes(mount: int, attributes: int, user_namespace: int, flags: int) -> None:
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, user_namespace)
    size = ctypes.sizeof(values)
    _check(_libc.syscall(SYS_MOUNT_SETATTR, mount, b"", flags | AT_EMPTY_PATH, values, size), "mount_setattr")


def move_mount(tree: int, target: int, name: str = "") -> None:
    """Attach a tree of mounts to an open directory or file, or to an entry of it; links are not followed."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if name else MOVE_MOUNT_T_EMPTY_PATH)
    _check(_libc.syscall(SYS_MOVE_MOUNT, tree, b"", target, os.fsencode(name), flags), "move_mount")


def set_file_ids(identity: int) -> None:
    """Set the file-system user and group ids of this process; 0 restores its privileges."""
    if identity:
        _libc.setfsgid(identity)
        _libc.setfsuid(identity)
    else:
        _libc.setfsuid(0)
        _libc.setfsgid(0)


def reset_reserved_signals() -> None:
    """Give the C library's own signals their default action: programs from posix_spawn ignore them."""
    action = bytes(32)  # the kernel's struct sigaction with SIG_DFL
    for number in RESERVED_SIGNALS:
        _check(_libc.syscall(SYS_RT_SIGACTION, number, action, None, 8), "rt_sigaction")


def set_dumpable(dumpable: bool) -> None:
    """Allow or forbid the user's other processes to read this one's memory; an exec allows it again."""
    _check(_libc.prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "prctl")


def pivot_root(new: str) -> None:
    """Make ``new``, a mount and the current directory, the root, and detach the old one."""
    _check(_libc.syscall(SYS_PIVOT_ROOT, b".", b"."), f"pivot_root to {new}")
    unmount(".")


def limit_capabilities(capabilities: Iterable[str], *, no_new_privileges: bool) -> None:
    """Drop all other capabilities from the bounding set, and optionally set no_new_privs."""
    bits = {CAPABILITIES[name] for name in capabilities}
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in bits:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if no_new_privileges:
        _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def set_capabilities(capabilities: Iterable[str]) -> None:
    """Keep only these capabilities, permitted and effective; none is inheritable."""
    low, high = (
        sum(1 << bit % 32 for bit in map(CAPABILITIES.__getitem__, capabilities) if bit // 32 == word)
        for word in (0, 1)
    )
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def filter_system_calls(program: bytes) -> None:
    """Filter the system calls of this process and its descendants, which may get no new privileges.

    Args:
        program: A classic BPF program; it has no effect on a kernel without seccomp filters.
    """
    filter_program = _Filter(len(program) // FILTER_INSTRUCTION, program)
    done = _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0)
    if done and ctypes.get_errno() != errno.EINVAL:
        _check(done, "seccomp")


def _check(result: int, call: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
