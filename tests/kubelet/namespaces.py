"""Namespaces and control groups in which a node runs, so that with them all that it has made ends.

The kubelet's settings of the kernel are the whole machine's, so they are put back; two runs at a time would
each restore the other's. `NEW` is the command that starts a process in namespaces of its own.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import node

NEW = ("unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
# What the kubelet sets for the whole machine.
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops") + (
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
CGROUPS = Path("/sys/fs/cgroup")
OWN_MOUNTS = ("/run", "/var/lib", "/var/log")


def cover(folder: Path) -> None:
    """Mount own folders over those into which containerd and the kubelet write, whatever is set."""
    for place in OWN_MOUNTS:
        empty = folder / place.strip("/").replace("/", "-")
        empty.mkdir()
        subprocess.check_call(["mount", "--bind", empty, place])
    # Nothing else answers here, and who waits for an answer waits for seconds.
    resolver = folder / "machine-resolv.conf"
    resolver.write_text(f"nameserver {node.ADDRESS}\n")
    subprocess.check_call(["mount", "--bind", resolver, "/etc/resolv.conf"])


def make_network() -> None:
    """Give the node its address, on a bridge that leads nowhere."""
    run = subprocess.check_call
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "node0", "type", "bridge"])
    run(["ip", "address", "add", f"{node.ADDRESS}/32", "dev", "node0"])
    run(["ip", "link", "set", "node0", "up"])
    run(["ip", "route", "add", "default", "dev", "node0"])


def join(interface: str, address: str) -> None:
    """Lead to an address outside by an interface that somebody there has put here."""
    subprocess.check_call(["ip", "link", "set", interface, "up"])
    subprocess.check_call(["ip", "route", "add", f"{address}/32", "dev", interface])


@contextlib.contextmanager
def sysctls_kept() -> Iterator[None]:
    """Put the kernel's settings back at the end."""
    values = {Path("/proc/sys", name): Path("/proc/sys", name).read_text() for name in SYSCTLS}
    try:
        yield
    finally:
        for path, value in values.items():
            path.write_text(value)


@contextlib.contextmanager
def cgroups(*names: str) -> Iterator[None]:
    """Make control groups of these paths, outer ones first, and delete them at the end."""
    hierarchies = [CGROUPS] if (CGROUPS / "cgroup.procs").exists() else [*CGROUPS.iterdir()]
    groups = [path / name for path in hierarchies if (path / "cgroup.procs").exists() for name in names]
    try:
        for group in groups:
            group.mkdir()
            if group.parent in groups and (controllers := group.parent / "cgroup.controllers").exists():
                # In version 2 a group has those that its parent hands on.
                enabled = " ".join(f"+{name}" for name in controllers.read_text().split())
                (group.parent / "cgroup.subtree_control").write_text(enabled)
            if (group / "cpu.shares").exists():
                # The kubelet's share for all pods together; by default they would have one process's.
                (group / "cpu.shares").write_text(str(1024 * (os.cpu_count() or 1)))
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (group / setting).exists():
                    (group / setting).write_text((group.parent / setting).read_text())
        yield
    finally:
        for group in reversed(groups):
            for path in sorted(group.rglob("*/"), key=lambda path: -len(path.parts)):
                path.rmdir()
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()
