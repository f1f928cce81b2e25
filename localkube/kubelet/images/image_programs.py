"""Where the programs of known images are on this machine, as the commands that run them.

An entry of the table names its program; here is what that means: a program of the cache, a script of ours,
the host's own, or one of the control plane's. What is missing says how it is obtained.
"""

import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localkube.controlplane.recipes import RECIPES
from localkube.paths import cache_dir

STAND_INS = Path(__file__).parent / "standins"
# What containers of small images call, for hosts that lack it.
APPLETS = STAND_INS / "applets"
SHELLS = ("bash", "busybox")  # that know what BusyBox's does
SCRIPTS = {"nginx": "static_server.py", "cuda-vectoradd": "vector_add.py"}
FROM_THE_HOST = {"curl": "install curl on this machine: apt-get install curl"}
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProgramNotFound(Exception):
    """A program is not on this machine; the text says what to do."""


@dataclass(frozen=True)
class Program:
    """A program that can be run.

    Attributes:
        argv: The command, to which arguments are appended.
        directory: A folder in which it has its usual name, for PATH; empty where it has none.
        origin: Where it comes from, in a word or two.
    """

    argv: tuple[str, ...]
    directory: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Programs:
    """The programs of this machine."""

    control_plane: Mapping[str, Sequence[str]] = field(default_factory=dict)
    python: str = sys.executable

    def find(self, name: str) -> Program:
        """Find a program of the table of images."""
        if script := SCRIPTS.get(name):
            # Torch is in the environment's packages; the web server needs none, and starts sooner without.
            flags = ("-u",) if name == "cuda-vectoradd" else ("-u", "-I", "-S")
            return Program((self.python, *flags, str(STAND_INS / script)), origin="a script of the kit")
        if name == "applets":
            shell = shutil.which("sh", path=HOST_PATH) or ""
            complete = (
                shutil.which("nslookup", path=HOST_PATH)
                and os.path.basename(os.path.realpath(shell)) in SHELLS
            )
            return Program((), "" if complete else str(APPLETS), origin="the host")
        if recipe := RECIPES.get(name):
            if not recipe.ready:
                raise ProgramNotFound(f"{name} {recipe.version} is not in the cache: run `{recipe.remedy}`")
            return Program((str(recipe.path),), str(recipe.folder), origin=f"the cache, {recipe.version}")
        if remedy := FROM_THE_HOST.get(name):
            place = shutil.which(name, path=HOST_PATH)
            if place is None:
                raise ProgramNotFound(f"there is no {name} on this machine: {remedy}")
            return Program((place,), origin="the host")
        argv = tuple(self.control_plane.get(name, ()))
        if not argv:
            raise ProgramNotFound(
                f"this control plane has no {name}: delete the cluster, run "
                "`TRAINYARD_CONTROLPLANE=build trainyard cluster create NAME`"
            )
        return Program(argv, _named(name, argv), origin="the control plane")


def _named(name: str, argv: tuple[str, ...]) -> str:
    """Make a folder in which ``argv`` can be called by ``name``."""
    if len(argv) == 1 and os.path.basename(argv[0]) == name:
        return os.path.dirname(argv[0])
    text = f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n'
    folder = cache_dir() / "programs" / f"named-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not os.access(folder / name, os.X_OK):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = folder / f".{name}.{os.getpid()}"
            aside.write_text(text)
            aside.chmod(0o700)
            aside.replace(folder / name)
        except OSError:
            return ""  # a cache that cannot be written: the name alone is lost, the entry point works
    return str(folder)
