"""A container image made from this machine's file system: nothing can be pulled in a test.

System programs and libraries are in the image; Python, the kit and its cache are mounted, because they are
large. Neither changes what a container may do: namespaces, mounts and system calls are those of a plain
``docker run``.
"""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

NAME = "trainyard-test-machine"
TOP = ("bin", "sbin", "lib", "lib64", "etc")
LIBRARIES = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
PARTS = ("usr/bin", "usr/sbin", "usr/lib/locale", "usr/share/zoneinfo", *LIBRARIES)
LARGEST = 24 * 2**20
EMPTY = ("tmp", "var/tmp", "proc", "sys", "dev", "run", "home/visitor")


def missing() -> str:
    """Return why no container can be run, or nothing."""
    if not shutil.which("docker"):
        return "there is no docker: apt-get install docker.io"
    done = subprocess.run(["docker", "info"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"docker does not answer: {done.stderr.strip().splitlines()[-1:]}"


def make_image() -> str:
    """Make the image, and return its name."""
    command = ["docker", "import", "-", NAME]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as done,
        tarfile.open(fileobj=done.stdin, mode="w|", format=tarfile.GNU_FORMAT) as image,
    ):
        for name in (*TOP, *PARTS):
            if Path("/", name).exists():
                image.add(f"/{name}", name, filter=_small)
        for name in EMPTY:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            image.addfile(entry)
    assert done.returncode == 0
    return NAME


def _small(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # A hard link to a file that is left out would break the image; those of drivers are.
    skipped = entry.name in ("etc/shadow", "etc/gshadow") or entry.size > LARGEST or "/dri" in entry.name
    readable = entry.isdir() or entry.issym() or os.access(f"/{entry.name}", os.R_OK)
    return None if skipped or not readable else entry
