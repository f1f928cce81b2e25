"""A cluster of the user nobody, for tests that root runs."""

import os
import shutil
from pathlib import Path
from typing import Any

from localkube.controlplane import binaries, etcd_snapshot
from localkube.paths import cache_dir
from localkube.runtime.syscalls import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, mount, unshare

from . import restrictions
from .restrictions import Enter


def enter_as_nobody(home: Path) -> Enter:
    """Return how to become nobody, with a copy of the control plane: the original is its owner's alone."""
    obtained = binaries.obtain(report=print)
    needed = {Path(command[0]).parent for command in obtained.programs.values()}
    snapshot = etcd_snapshot.obtain(obtained, report=print)
    originals = cache_dir() / "controlplane"
    copy = home / "controlplane"
    copy.mkdir()
    for folder in [*needed, *([snapshot] if snapshot else [])]:
        if folder.is_relative_to(originals):
            shutil.copytree(folder, copy / folder.name)
    for path in [copy, *copy.rglob("*")]:
        os.chown(path, restrictions.NOBODY, restrictions.NOBODY)
    return restrictions.become_nobody(
        {place: place for place in restrictions.python_places()} | {originals: copy}
    )


def nobodys(home: Path) -> dict[str, Any]:
    """Return the options of ``localkube`` for a user whose home is another, and whose cache is this one."""
    return {"env": {"HOME": str(home), "XDG_CACHE_HOME": str(cache_dir().parent)}, "cwd": "/"}


SUBORDINATE = [Path("/etc/subuid"), Path("/etc/subgid")]


def with_subordinate_ids(home: Path, enter: restrictions.Enter) -> restrictions.Enter:
    """Let the user nobody have subordinate ids, in a mount namespace of the command's own."""
    (home / "ids").write_text("nobody:300000:65536\n")

    def both() -> None:
        unshare(CLONE_NEWNS)
        mount(None, "/", None, MS_REC | MS_PRIVATE)
        for path in SUBORDINATE:
            mount(str(home / "ids"), str(path), None, MS_BIND)
        enter()

    return both
