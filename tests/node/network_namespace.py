"""Run a test in a network namespace like a site's: loopback up, and the Service range local to it.

``in_network_namespace`` forks, so that the child, which has one thread, may make a user namespace where the
user is not root. Nothing of the host's network is touched.
"""

import asyncio
import ctypes
import functools
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from localkube.runtime.syscalls import set_dumpable

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
SETUP = ("link set lo up", "address add 10.244.0.1/16 dev lo", "route add local 10.96.0.0/16 dev lo")


def in_network_namespace(test):
    """Make an async test run in a namespace of its own; skip it where that is refused, saying so.

    A test with a ``home`` runs as the owner of that.
    """

    @functools.wraps(test)
    def forked(*args, **kwargs):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os._exit(_child(test, args, kwargs, writing))
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 77:
            pytest.skip(f"this machine allows no network namespace, so the real thing was NOT tested: {text}")
        assert code == 0, text

    return forked


def _child(test, args, kwargs, pipe) -> int:
    try:
        try:
            if "home" in kwargs:
                become(kwargs["home"].stat().st_uid)
            enter_network_namespace()
        except PermissionError as error:
            os.write(pipe, str(error).encode())
            return 77
        asyncio.run(test(*args, **kwargs))
    except BaseException:  # noqa: BLE001 - whatever it was goes to the parent, which fails with it
        os.write(pipe, traceback.format_exc().encode())
        return 1
    sys.stdout.flush()
    return 0


def become(user: int) -> None:
    """Become a user, for good, without further groups."""
    if user != os.getuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        set_dumpable(True)  # files of this process in /proc are the user's


def enter_network_namespace() -> None:
    """Move this process into new network and mount namespaces, and a user namespace if it is not root's."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount("--make-rprivate", "/")
    for line in SETUP:
        subprocess.run(["ip", *line.split()], check=True)


def mount(*arguments: str | Path) -> None:
    """Run ``mount``; what it does is seen in this namespace alone."""
    subprocess.run(["mount", *map(str, arguments)], check=True)
