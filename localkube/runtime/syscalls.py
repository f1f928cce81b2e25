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
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_UNBINDABLE, MS_PRIVATE = 16384, 1 << 17, 1 << 18
PROC_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
MNT_DETACH = 2
FALLOC_FL_KEEP_SIZE = 1
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = 155, 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18,
    "CAP_MKNOD": 27,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
if os.uname().machine == "aarch64":
    SYS_PIVOT_ROOT = 41


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int = 0) -> None:
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3])
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the parent ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind; it lasts through an exec."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def reserve(descriptor: int, size: int) -> None:
    """Take room on the disk for the first ``size`` bytes of a file; its length stays as it is."""
    done = _libc.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))
    if done and ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS):
        _check(done, "fallocate")


def make_read_only(target: str) -> None:
    """Make a mount and all below it read-only; before Linux 5.12 only the mount itself."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE, attributes, ctypes.sizeof(attributes)
    )
    if result and ctypes.get_errno() == errno.ENOSYS:
        mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    else:
        _check(result, f"make {target} read-only")


def pivot_root(new: str) -> None:
    """Make ``new``, a mount and the current directory, the root, and detach the old one."""
    _check(_libc.syscall(SYS_PIVOT_ROOT, b".", b"."), f"pivot_root to {new}")
    unmount(".")


def drop_privileges(capabilities: Iterable[str]) -> None:
    """Keep these capabilities alone, for good: bounding set, permitted, effective, inheritable."""
    kept = {CAPABILITIES[name] for name in capabilities}
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in kept:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    low = sum(1 << bit for bit in kept)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, 0, 0, 0)
    _check(_libc.capset(header, data), "capset")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
