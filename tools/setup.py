"""Make the virtual environment and obtain the control plane, both at once, and say what happens meanwhile.

Runs with any Python 3.11 or later and nothing installed: ``python3 tools/setup.py --venv .venv``.
What is already there is kept: a second run takes a fraction of a second.
How the control plane is found is no matter of this file but of ``localkube.controlplane``.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from localkube.bundles import wheels  # noqa: E402 (it needs nothing installed)

MARKER = "trainyard-setup.json"
NEEDED_BYTES = 8 * 10**9
# pip would compile 16,000 files: a minute of a core that the build of the control plane needs. These are
# imported once instead, which compiles what they use: a pod sees the environment read-only and keeps nothing.
USED = (
    "torch._dynamo, torch.distributed.run, torchvision, "
    "sklearn.datasets, matplotlib.pyplot, pandas, papermill"
)
QUIET_SECONDS = 15  # the longest silence before a line says what is still going on


class SetupError(Exception):
    """Say what failed and what to do next."""


COMPILERS = ("cc", "gcc", "clang")


@dataclass
class Job:
    """One thing to be obtained: its commands run one after the other, and their output becomes progress."""

    name: str
    elsewhere: str
    commands: list[list[str]]
    remedy: str
    environment: dict[str, str] = field(default_factory=dict)
    last: str = "starting"
    said: float = 0.0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=25))


def say(job: Job, text: str, began: float) -> None:
    """Print one line of progress."""
    now = time.monotonic()
    minutes, seconds = divmod(int(now - began), 60)
    print(f"  {minutes}:{seconds:02d}  {job.name:<14} {text}", flush=True)
    job.said = now


def progress_of(line: str) -> str | None:
    """Return what a line of output says about progress, or None where it is a detail.

    Example:
        >>> progress_of("Downloading torch-2.15.0-cp311-cp311-linux_x86_64.whl (780.2 MB)")
        'downloading torch-2.15.0 (780.2 MB)'
    """
    if ".metadata" in line:
        return None
    if match := re.match(r"\s*Downloading (?:\S*/)?([\w.]+-[\w.]+?)(?:-\S+)? \((.+)\)", line):
        return f"downloading {match[1]} ({match[2]})"
    if line.startswith("Installing collected packages"):
        return f"unpacking {line.count(',') + 1} packages"
    if line.startswith(("Successfully installed", "Successfully built")):
        return None
    if re.match(
        r"\s*(Collecting|Processing|Requirement already|Obtaining|Using cached|Preparing|Installing|Getting|"
        r"Checking|Building|Created|Stored|Looking in|Attempting|Found existing|Uninstalling)",
        line,
    ):
        return None
    return line.strip() or None


async def run(job: Job, began: float) -> None:
    """Run a job's commands; raise with their last words if one fails."""
    for command in job.commands:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | job.environment,
            limit=2**22,
        )
        try:
            async for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip()
                job.tail.append(line)
                job.last = line.strip()[:70] or job.last
                if text := progress_of(line):
                    job.last = text
                    # pip names a hundred small files; one line every few seconds is enough of them.
                    if not text.startswith("downloading") or time.monotonic() - job.said > 4:
                        say(job, text, began)
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
        if code:
            raise SetupError(
                "\n".join([*job.tail, "", f"{job.name}: {command[0]} ended with {code}.", job.remedy])
            )
    say(job, "ready", began)


async def keep_company(jobs: list[Job], began: float) -> None:
    """Say what is still going on whenever a job has been silent for a while."""
    while True:
        await asyncio.sleep(1)
        for job in jobs:
            if time.monotonic() - job.said > QUIET_SECONDS:
                say(job, f"still at it: {job.last}", began)


async def obtain(jobs: list[Job]) -> None:
    """Run the jobs side by side; the first failure ends them all."""
    began = time.monotonic()
    for job in jobs:
        say(job, job.elsewhere, began)
    company = asyncio.create_task(keep_company(jobs, began))

    async def watched(job: Job) -> None:
        await run(job, began)
        jobs.remove(job)

    try:
        async with asyncio.TaskGroup() as group:
            for job in list(jobs):
                group.create_task(watched(job))
    finally:
        company.cancel()


def fingerprint() -> str:
    """Return a digest of everything that decides what the environment holds."""
    text = sys.version + "".join((ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_ready(venv: Path) -> bool:
    """Say whether ``venv`` was made by this script from the same requirements, and still starts."""
    with contextlib.suppress(OSError, ValueError):
        marker = json.loads((venv / MARKER).read_text())
        return marker == {"fingerprint": fingerprint(), "at": str(venv)} and (venv / "bin/python").exists()
    return False


def mark(venv: Path) -> None:
    """Leave the note in ``venv`` by which `is_ready` knows it again."""
    (venv / MARKER).write_text(json.dumps({"fingerprint": fingerprint(), "at": str(venv)}))


def packages_job(venv: Path) -> Job:
    """Return the job that fills ``venv``; a conda environment has its packages already."""
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    remedy = "What pip said is above. It can be started again at any time: make setup"
    if (venv / "conda-meta").is_dir():
        return Job(
            "packages", "this project, into the conda environment", [[*pip, "--no-deps", "-e", "."]], remedy
        )
    # Plain mode compiles a small library once; where there is no compiler, one comes as a package.
    extras = "dev" if any(map(shutil.which, COMPILERS)) else "dev,compiler"
    commands = [
        [*pip, *wheels.pip_options(), "--no-compile", "-c", "constraints.txt", "-e", f".[{extras}]"],
        [python, "-c", f"import {USED}; print('compiled what a run needs')"],
    ]
    if not (venv / "bin/python").exists() or not (venv / "pyvenv.cfg").exists():
        commands.insert(0, [sys.executable, "-m", "venv", "--clear", str(venv)])
        remedy += "\nIf it was the venv that failed: on Debian, `apt-get install python3-venv`."
        free = shutil.disk_usage(venv.parent).free
        if free < NEEDED_BYTES:
            raise SetupError(
                f"{venv.parent} has {free / 1e9:.1f} GB free and the environment needs about "
                f"{NEEDED_BYTES / 1e9:.0f}: free some, or choose another place with VENV=…"
            )
    return Job("packages", "Python packages, pinned; 2 to 3 minutes elsewhere", commands, remedy)


def control_plane_job(venv: Path) -> Job:
    """Return the job that finds, downloads or builds Kubernetes.

    The environment's Python may have it as a package; while there is none, the Python of this script looks.
    """
    python = venv / "bin" / "python"
    return Job(
        "control plane",
        "Kubernetes; 1 minute elsewhere when downloaded, 6 when built",
        [[str(python) if is_ready(venv) else sys.executable, "-m", "localkube.controlplane"]],
        "Then start again: make setup",
        {"PYTHONPATH": str(ROOT)},
    )


def main() -> int:
    """Set up what is missing."""
    parser = argparse.ArgumentParser(description="Set up the environment and the control plane.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    venv = parser.parse_args().venv.absolute()
    began = time.monotonic()
    failures: list[BaseException] = []
    try:
        jobs = [] if is_ready(venv) else [packages_job(venv)]
        jobs.append(control_plane_job(venv))
        print("setup: " + " and ".join(job.name for job in jobs), flush=True)
        asyncio.run(obtain(list(jobs)))
        mark(venv)
    except* SetupError as group:
        failures.extend(group.exceptions)
    if failures:
        print("".join(f"\nsetup failed: {error}\n" for error in failures), file=sys.stderr)
        return 1
    print(f"setup: done in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("setup: interrupted; what was obtained is kept, `make setup` goes on from there")
