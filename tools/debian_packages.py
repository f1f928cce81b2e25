#!/usr/bin/env python3
"""Debian packages with programs that validate the kit's output; tests without them are skipped.

    apt-get install $(python3 tools/debian_packages.py)

It prints the missing packages. It needs only Python, as `.ci/run` calls it before the environment exists.
"""

import shutil
from pathlib import Path

# Packages, each with a program that the tests start.
PROGRAMS = {
    "busybox-static": "/bin/busybox",
    "docker-registry": "docker-registry",
    "docker.io": "dockerd",
    "fish": "fish",
    "podman": "podman",
    "skopeo": "skopeo",
    "uidmap": "newuidmap",
    "umoci": "umoci",
    "zsh": "zsh",
    "zstd": "zstd",
}
SBIN = "/usr/sbin:/sbin"  # not on everybody's PATH


def missing() -> list[str]:
    """Return the packages that are not installed, in alphabetical order."""
    return [
        package
        for package, program in sorted(PROGRAMS.items())
        if not Path(program).is_file() and not shutil.which(program) and not shutil.which(program, path=SBIN)
    ]


if __name__ == "__main__":
    print(" ".join(missing()))
