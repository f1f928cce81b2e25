"""Plain mode's preload library: found in the wheel or the cache, or compiled, which takes a second.

The compiler is the machine's own, or the one in the PyPI package ``ziglang``. The library is written in C
because it interposes on functions of the C library.
"""

import contextlib
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from localkube.errors import LocalClusterError, Skipped
from localkube.paths import cache_dir, packaged_program, private_dir, unwritable

SOURCES = Path(__file__).parent
# Debug information would contain the path of the sources; a release is reproducible wherever it is built.
FLAGS = ("-O2", "-g0", "-fPIC", "-shared", "-fno-lto", "-Wno-nonnull-compare", "-Wno-unknown-warning-option")
NAME = "trainyard-preload.so"
COMPILERS = ("cc", "gcc", "clang")
COMPILE_SECONDS = 120


def obtain(report: Callable[[str], None]) -> Path:
    """Find the library for this machine, compiling it if need be."""
    with contextlib.suppress(Skipped):
        return packaged_program(NAME, key())
    built = cache_dir() / "preload" / key() / NAME
    if built.exists():
        return built
    private_dir(built.parent)
    report("compiling the library that plain mode loads into pods")
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        library = Path(scratch) / NAME
        _compile(library)
        try:
            library.rename(built)
        except OSError as error:
            raise unwritable(built, error) from error
    return built


def key(machine: str = "") -> str:
    """Hash the sources and the kind of machine (by default this one) that a built library belongs to."""
    digest = hashlib.sha256((machine or platform.machine()).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def compile_library(compiler: list[str], output: Path) -> None:
    command = [*compiler, *FLAGS, "-o", str(output), *map(str, sorted(SOURCES.glob("*.c"))), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(compiler, str(error)) from error
    if done.returncode:
        raise _failed(compiler, "\n".join(done.stderr.strip().splitlines()[:6]))


def _failed(compiler: list[str], reason: str) -> LocalClusterError:
    return LocalClusterError(
        f"plain mode's library could not be compiled: {reason}",
        about=" ".join(compiler),
        fix="install a C compiler with its headers (apt-get install gcc libc6-dev), or: pip install ziglang",
    )


def _compile(output: Path) -> None:
    """Compile with the first compiler that works: ``cc`` may be installed without the C headers."""
    paths = (shutil.which(name) for name in (os.environ.get("CC", ""), *COMPILERS) if name)
    compilers = [[path] for path in paths if path]
    if importlib.util.find_spec("ziglang"):
        compilers.append([sys.executable, "-m", "ziglang", "cc"])
    failures = []
    for compiler in compilers:
        try:
            return compile_library(compiler, output)
        except LocalClusterError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    raise LocalClusterError(
        "plain mode needs a C compiler once, and none was found",
        about="cc, gcc, clang and the Python package ziglang",
        fix="pip install ziglang, or have an administrator install gcc",
    )
