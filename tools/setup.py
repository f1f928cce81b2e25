"""Create the virtual environment, and build the control plane and operators at low priority meanwhile.

It runs with Python 3.11 or later, without packages. ``python3 tools/setup.py --venv .venv`` returns when
everything is ready. With a command (``-- .venv/bin/jupyter lab``) it executes that command as soon as the
packages are installed; the control plane and the operators continue in the background while the command runs.
Existing parts are kept: a second run takes a fraction of a second. ``localkube.controlplane`` finds the
control plane, and ``install_packages.py`` installs the packages.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the imports below shows no traceback

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from localkube.bundles import wheels  # noqa: E402 (it needs nothing installed)
from localkube.errors import LocalClusterError  # noqa: E402
from localkube.paths import cache_dir, private_dir  # noqa: E402

MARKER = "trainyard-setup.json"
TIMES = ROOT / "reports" / "setup.json"
FETCHED_SECONDS = 4
QUIET_SECONDS = 15  # the longest time without output before a progress line


class SetupError(Exception):
    """The message names what failed and the fix."""


COMPILERS = ("cc", "gcc", "clang")


@dataclass
class Job:
    """A job of the set-up: its commands run in order, and their output becomes progress."""

    name: str
    summary: str
    commands: list[list[str]]
    remedy: str
    environment: dict[str, str] = field(default_factory=dict)
    last: str = "starting"
    reported_at: float = 0.0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=25))


def report_progress(job: Job, text: str, start: float) -> None:
    """Print one line of progress."""
    now = time.monotonic()
    minutes, seconds = divmod(int(now - start), 60)
    print(f"  {minutes}:{seconds:02d}  {job.name:<14} {text}", flush=True)
    job.reported_at = now


async def run(job: Job, start: float) -> None:
    """Run a job's commands; raise an error with the end of the output if one fails."""
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
            assert process.stdout
            async for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip()
                job.tail.append(line)
                if not line:
                    continue
                job.last = line.strip()
                # One line every few seconds is enough for a hundred packages.
                if " MB fetched" not in line or time.monotonic() - job.reported_at > FETCHED_SECONDS:
                    report_progress(job, job.last, start)
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
    report_progress(job, "ready", start)


async def report_silence(jobs: list[Job], start: float) -> None:
    """Print a line when a job has printed nothing for a while."""
    while True:
        await asyncio.sleep(1)
        for job in jobs:
            if time.monotonic() - job.reported_at > QUIET_SECONDS:
                report_progress(job, f"in progress: {job.last}", start)


async def obtain(jobs: list[Job]) -> None:
    """Run the jobs in parallel; the first failure ends all."""
    start = time.monotonic()
    for job in jobs:
        report_progress(job, job.summary, start)
    silence = asyncio.create_task(report_silence(jobs, start))

    async def watched(job: Job) -> None:
        await run(job, start)
        jobs.remove(job)

    try:
        async with asyncio.TaskGroup() as group:
            for job in list(jobs):
                group.create_task(watched(job))
    finally:
        silence.cancel()


def fingerprint() -> str:
    """Return a digest of everything that determines the environment."""
    files = ("pyproject.toml", "localkube/pyproject.toml", "constraints.txt")
    text = sys.version + "".join((ROOT / name).read_text() for name in files)
    return hashlib.sha256(text.encode()).hexdigest()


def is_ready(venv: Path) -> bool:
    """Check whether this script created ``venv`` from the same requirements, and it still starts."""
    with contextlib.suppress(OSError, ValueError):
        marker = json.loads((venv / MARKER).read_text())
        return marker == {"fingerprint": fingerprint(), "at": str(venv)} and (venv / "bin/python").exists()
    return False


def mark(venv: Path) -> None:
    """Write the digest that `is_ready` reads to ``venv``."""
    (venv / MARKER).write_text(json.dumps({"fingerprint": fingerprint(), "at": str(venv)}))


def packages_job(venv: Path, extra: Sequence[str] = ()) -> Job:
    """Return the job that fills ``venv``; a conda environment already has its packages.

    Args:
        venv: The environment's folder.
        extra: Further packages or wheels.
    """
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    remedy = "The error is above. Start again at any time: make setup"
    if (venv / "conda-meta").is_dir():
        command = [*pip, "--no-deps", "--editable", ".", "--editable", "./localkube", *extra]
        return Job("packages", "this project, into the conda environment", [command], remedy)
    # Plain mode compiles a small library once; without a compiler, one is installed as a package.
    compiler = "" if any(map(shutil.which, COMPILERS)) else ",compiler"
    commands = [
        [*pip, *wheels.pip_options(), "--constraint", "constraints.txt", "uv"],
        [
            python,
            "tools/install_packages.py",
            "--extras",
            f"clouds,workshop,elastic,tensorboard,transformers,lab,dev{compiler}",
            *extra,
        ],
    ]
    # A venv without pip, its last file, was interrupted and is recreated.
    if not all((venv / name).exists() for name in ("bin/python", "pyvenv.cfg", "bin/pip")):
        commands.insert(0, [sys.executable, "-m", "venv", "--clear", str(venv)])
        remedy += "\nIf it was the venv that failed: on Debian, `apt-get install python3-venv`."
    return Job("packages", "Python packages, pinned; mostly downloads", commands, remedy)


def control_plane_job(venv: Path) -> Job:
    """Return the job that finds, downloads or builds Kubernetes, and then the operators.

    The environment's Python may have it as a package; before the environment exists, this script's Python is
    used.
    """
    python = str(venv / "bin" / "python") if is_ready(venv) else sys.executable
    return Job(
        "control plane",
        "Kubernetes and operators: from a wheel, a bundle or the cache, else built",
        [[python, "-m", "localkube.controlplane", "--operators", "--background"]],
        "Then start again: make setup",
        {"PYTHONPATH": str(ROOT)},
    )


def start_in_background(job: Job) -> Path:
    """Start a job that outlives this process; return its log.

    It ends with the program that replaces this process.
    """
    log = private_dir(cache_dir() / "controlplane") / "obtain.log"
    (command,) = job.commands
    with log.open("wb") as output:
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | job.environment,
            start_new_session=True,  # Ctrl-C is only for the program in the foreground
        )
    return log


def exec_command(command: Sequence[str], seconds: float, began: float) -> NoReturn:
    """Execute ``command`` in this process; the set-up time is left for its report."""
    TIMES.parent.mkdir(exist_ok=True)
    parts = [{"name": "packages", "seconds": round(seconds, 1)}]
    TIMES.write_text(json.dumps({"began": began, "parts": parts}) + "\n")
    sys.stdout.flush()
    os.execvp(command[0], [*command])


def set_up(venv: Path, command: Sequence[str], wheel_files: Sequence[str], *, packages_only: bool) -> None:
    """Set up what is missing, and execute the command, if any.

    Raises:
        ExceptionGroup: Of `SetupError`.
    """
    began, started = time.time(), time.monotonic()
    packages = [] if is_ready(venv) and not wheel_files else [packages_job(venv, wheel_files)]
    # A wheel may contain the control plane, so that it is installed first.
    beside = [] if wheel_files or packages_only else [control_plane_job(venv)]
    if command:
        for job in beside:
            print(f"setup: {job.name} in the background; its log is {start_in_background(job)}", flush=True)
        beside.clear()
    asyncio.run(obtain([*packages, *beside]))
    mark(venv)
    if wheel_files:
        later = control_plane_job(venv)
        start_in_background(later) if command else asyncio.run(obtain([later]))
    seconds = time.monotonic() - started
    print(f"setup: done in {seconds:.0f} s", flush=True)
    if command:
        exec_command(command, seconds, began)


def main() -> int:
    """Set up what is missing."""
    parser = argparse.ArgumentParser(description="Set up the environment and the control plane.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--wheel", action="append", default=[], help="a further package, such as make wheel's"
    )
    parser.add_argument(
        "--packages", action="store_true", help="install packages only, without the control plane"
    )
    parser.add_argument("command", nargs="*", help="the command to execute when the packages are installed")
    options = parser.parse_args()
    failures: list[BaseException] = []
    try:
        set_up(options.venv.absolute(), options.command, options.wheel, packages_only=options.packages)
    except* (SetupError, LocalClusterError) as group:
        failures.extend(group.exceptions)
    for error in failures:
        print(f"\nsetup failed: {error}", file=sys.stderr)
    return len(failures) > 0


if __name__ == "__main__":
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("setup: interrupted; completed parts are kept, `make setup` continues from there")
