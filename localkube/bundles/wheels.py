"""The Python packages of a bundle: fetched for this Python and platform, and offered to pip from the cache.

They are the pinned packages of constraints.txt. Another version of Python uses none of them; with another
constraints.txt pip uses them in addition to the index, because most will fit.
"""

import hashlib
import json
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from localkube.bundles.manifest import python_tag
from localkube.controlplane.lock import Report
from localkube.errors import LocalClusterError
from localkube.paths import cache_dir, read_json

NOTE = "wheels.json"
_FETCHED = re.compile(r"\s*(?:Downloading|Using cached) (?:\S*/)?([\w.]+-[\w.]+?)(?:-\S+)? \((.+)\)")
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
REPORT_SECONDS = 4
TAIL_LINES = 8


def folder() -> Path:
    """Name the folder of the cache for wheels."""
    return cache_dir() / "wheels"


def pip_options(constraints: Path = CONSTRAINTS) -> list[str]:
    """Build options that make pip install from a bundle's wheels; none if there are none for this Python."""
    note = read_json(folder() / NOTE)
    if note.get("python") != python_tag():
        return []
    offer = ["--find-links", str(folder())]
    return ["--no-index", *offer] if note.get("constraints") == _digest(constraints) else offer


def fetch(target: Path, *, report: Report, constraints: Path = CONSTRAINTS) -> None:
    """Download or build a wheel of everything that ``constraints`` pins, for this Python."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--no-deps", "--wheel-dir", str(target), "--requirement", str(constraints)]
    tail = deque[str](maxlen=TAIL_LINES)
    count = reported_at = 0.0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None, "standard output is a pipe"
        for line in pip.stdout:
            tail.append(line.rstrip())
            fetched = _FETCHED.match(line)
            if fetched and ".metadata" not in line:
                count += 1
                if time.monotonic() - reported_at > REPORT_SECONDS:
                    reported_at = time.monotonic()
                    report(f"Wheels: {count:.0f} fetched, now {fetched[1]} ({fetched[2]})")
    if pip.returncode:
        raise LocalClusterError(
            "pip cannot fetch the wheels; its last lines are:\n" + "\n".join(tail) + "\n",
            about=str(constraints),
            fix="try again where there is a network; or leave them out with --without-wheels",
        )
    note = {"python": python_tag(), "constraints": _digest(constraints)}
    (target / NOTE).write_text(json.dumps(note) + "\n", encoding="utf-8")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
