"""Find the programs of known images on this machine, as the commands that run them.

An entry of the table names its program, which is found here: in the cache, among the kit's scripts, on the
host, or in the control plane. The error for a missing program says how to obtain it.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from localkube.controlplane.recipes import RECIPES
from localkube.paths import cache_dir

STAND_INS = Path(__file__).parent / "standins"
# Programs that containers of small images call, which behave as BusyBox's do and this machine's may not.
APPLETS = STAND_INS / "applets"
SCRIPTS = {"nginx": "static_server.py", "cuda-vectoradd": "vector_add.py"}
FROM_THE_HOST = {"curl": "install curl on this machine: apt-get install curl"}
# Programs of BusyBox that pods call, and a machine may lack.
_APPLETS = "telnet httpd wget traceroute vi ftpget ftpput tftp busybox"
APPLET_NAMES = frozenset(_APPLETS.split())
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProgramNotFound(Exception):
    """A program is not on this machine; the message says how to obtain it."""


@dataclass(frozen=True)
class Program:
    """A program that can be run.

    Attributes:
        argv: The command, to which arguments are appended.
        directory: A folder in which it has its usual name, for PATH; empty if there is none.
        origin: Where it comes from, in a few words.
    """

    argv: tuple[str, ...]
    directory: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Programs:
    """The programs of this machine.

    Attributes:
        control_plane: Commands of the control plane's programs, by name.
        python: The interpreter of scripts.
        preloaded: Pods have the library of plain mode preloaded, which a static BusyBox ignores.
    """

    control_plane: Mapping[str, Sequence[str]] = field(default_factory=dict)
    python: str = sys.executable
    preloaded: bool = False

    @property
    def busybox(self) -> str:
        """BusyBox's program; empty where the host's own stand in for it."""
        return "" if self.preloaded else busybox()

    def find(self, name: str) -> Program:
        """Find a program of the table of images."""
        if script := SCRIPTS.get(name):
            # Torch is in the environment's packages; the web server needs none, and starts sooner without.
            flags = ("-u",) if name == "cuda-vectoradd" else ("-u", "-I", "-S")
            return Program((self.python, *flags, str(STAND_INS / script)), origin="a script of the kit")
        if name == "applets":
            return Program((), applets_directory(self.busybox), origin="the host")
        if recipe := RECIPES.get(name):
            if not recipe.ready:
                raise ProgramNotFound(f"{name} {recipe.version} is not in the cache: run `{recipe.command}`")
            return Program((str(recipe.path),), str(recipe.folder), origin=f"the cache, {recipe.version}")
        if fix := FROM_THE_HOST.get(name):
            place = shutil.which(name, path=HOST_PATH)
            if place is None:
                raise ProgramNotFound(f"there is no {name} on this machine: {fix}")
            return Program((place,), origin="the host")
        argv = tuple(self.control_plane.get(name, ()))
        if not argv:
            raise ProgramNotFound(
                f"this control plane has no {name}: delete the cluster, run "
                "`TRAINYARD_CONTROLPLANE=build python -m localkube create NAME`"
            )
        return Program(argv, _named(name, argv), origin="the control plane")

    def missing_applets(self, container: Mapping[str, Any]) -> list[str]:
        """List the programs of BusyBox's image that a container's command calls and this machine lacks."""
        names = {"apk"} if self.busybox else {"apk", *APPLET_NAMES}
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        called = {word for text in words for word in re.findall(r"(?<![\w./$-])[a-z]+(?![\w./=-])", text)}
        return sorted(name for name in names & called if not shutil.which(name, path=HOST_PATH))


def busybox() -> str:
    """Find BusyBox: this machine's, or one of a bundle; empty where there is none.

    A dynamic one would do: containers of stand-ins have the machine's libraries.
    """
    bundled = cache_dir() / "programs" / "busybox" / "busybox"
    return shutil.which("busybox", path=HOST_PATH) or (str(bundled) if os.access(bundled, os.X_OK) else "")


@cache
def applets_directory(program: str) -> str:
    """Make a directory with BusyBox's programs by its own names, and the kit's in place of some.

    The shell and nslookup are not BusyBox's: a later release's nslookup, with which operators' init
    containers look up a master, fails when one of several search domains has no answer, and its shell always
    runs its own. Its nc may lack -z, and its ping a capability. Every user may enter the directory.
    """
    stamp = f"{os.stat(program).st_mtime_ns:x}" if program else "none"
    folder = cache_dir() / "programs" / f"applets-{stamp}-{_digest(APPLETS)}"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.chmod(0o755)
        if program:
            copy_into(folder, "busybox", Path(program))
            names = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
            for name in names.split():
                with contextlib.suppress(FileExistsError):
                    (folder / name).symlink_to("busybox")
        for applet in APPLETS.iterdir():
            if applet.name not in ("ash", "sh") or os.path.exists("/bin/bash"):
                copy_into(folder, applet.name, applet)
    except (OSError, subprocess.CalledProcessError):
        return str(APPLETS)
    return str(folder)


def copy_into(folder: Path, name: str, program: Path) -> None:
    """Copy a program into a folder, atomically."""
    temporary = folder / f".{name}.{os.getpid()}"
    shutil.copyfile(program, temporary)
    temporary.chmod(0o755)
    temporary.replace(folder / name)


def _digest(folder: Path) -> str:
    contents = b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.iterdir()))
    return hashlib.sha256(contents).hexdigest()[:12]


@cache
def torchrun_directory(python: str = sys.executable) -> str:
    """Make a directory with ``torchrun`` for an interpreter whose torch is elsewhere; empty if it has one.

    The script beside that torch would start another interpreter, which lacks the packages of this one.
    """
    if os.path.exists(os.path.join(os.path.dirname(python), "torchrun")):
        return ""
    return _script("torchrun", f"#!{python}\nfrom torch.distributed.run import main\n\nmain()\n")


def _named(name: str, argv: tuple[str, ...]) -> str:
    """Make a folder in which ``argv`` can be called by ``name``."""
    if len(argv) == 1 and os.path.basename(argv[0]) == name:
        return os.path.dirname(argv[0])
    return _script(name, f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')


def _script(name: str, text: str) -> str:
    """Write a script that each user of a pod may run, and return its directory; empty on failure."""
    folder = cache_dir() / "programs" / f"named-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        if not (folder / name).exists() or folder.stat().st_mode & 0o777 != 0o755:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.write_text(text)
            temporary.chmod(0o755)
            temporary.replace(folder / name)
            folder.chmod(0o755)
    except OSError:
        return ""  # only the usual name is missing: the entry point works
    return str(folder)
