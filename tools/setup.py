"""Create the virtual environment, and build the control plane and operators at low priority meanwhile.

Runs with any Python 3.11 or later and nothing installed: ``python3 tools/setup.py --venv .venv`` ends when
all is there. With a command (``-- .venv/bin/jupyter lab``) it becomes that command as soon as the packages
are there; the control plane and the operators go on in the background, as long as the command runs.
What is already there is kept: a second run takes a fraction of a second.
How the control plane is found is no matter of this file but of ``localkube.controlplane``; which packages
are installed from where, of ``install_packages.py``.
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
QUIET_SECONDS = 15  # the longest silence before a line says what is still going on


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
    said: float = 0.0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=25))


def say(job: Job, text: str, began: float) -> None:
    """Print one line of progress."""
    now = time.monotonic()
    minutes, seconds = divmod(int(now - began), 60)
    print(f"  {minutes}:{seconds:02d}  {job.name:<14} {text}", flush=True)
    job.said = now


async def run(job: Job, began: float) -> None:
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
                # A hundred packages arrive; one line every few seconds is enough of them.
                if " MB fetched" not in line or time.monotonic() - job.said > FETCHED_SECONDS:
                    say(job, job.last, began)
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
    """Print a line when a job has printed nothing for a while."""
    while True:
        await asyncio.sleep(1)
        for job in jobs:
            if time.monotonic() - job.said > QUIET_SECONDS:
                say(job, f"still at it: {job.last}", began)


async def obtain(jobs: list[Job]) -> None:
    """Run the jobs in parallel; the first failure ends all."""
    began = time.monotonic()
    for job in jobs:
        say(job, job.summary, began)
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


def packages_job(venv: Path, more: Sequence[str] = ()) -> Job:
    """Return the job that fills ``venv``; a conda environment already has its packages.

    Args:
        venv: The environment's folder.
        more: Further packages or wheels.
    """
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    remedy = "What failed is above. It can be started again at any time: make setup"
    if (venv / "conda-meta").is_dir():
        command = [*pip, "--no-deps", "--editable", ".", "--editable", "./localkube", *more]
        return Job("packages", "this project, into the conda environment", [command], remedy)
    # Plain mode compiles a small library once; where there is no compiler, one comes as a package.
    compiler = "" if any(map(shutil.which, COMPILERS)) else ",compiler"
    commands = [
        [*pip, *wheels.pip_options(), "--constraint", "constraints.txt", "uv"],
        [
            python,
            "tools/install_packages.py",
            "--extras",
            f"clouds,workshop,elastic,tensorboard,transformers,lab,dev{compiler}",
            *more,
        ],
    ]
    # The last file that a venv gets is pip's: one that was interrupted has none, and is made anew.
    if not all((venv / name).exists() for name in ("bin/python", "pyvenv.cfg", "bin/pip")):
        commands.insert(0, [sys.executable, "-m", "venv", "--clear", str(venv)])
        remedy += "\nIf it was the venv that failed: on Debian, `apt-get install python3-venv`."
    return Job("packages", "Python packages, pinned; downloads are most of it", commands, remedy)


def control_plane_job(venv: Path) -> Job:
    """Return the job that finds, downloads or builds Kubernetes, and then the operators.

    The environment's Python may have it as a package; while there is none, the Python of this script looks.
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

    It ends with that program.
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
            start_new_session=True,  # Ctrl-C is for the program in the foreground, which may go on
        )
    return log


def become(command: Sequence[str], seconds: float, began: float) -> NoReturn:
    """Execute ``command`` in this process; the set-up time is left for its report."""
    TIMES.parent.mkdir(exist_ok=True)
    parts = [{"name": "packages", "seconds": round(seconds, 1)}]
    TIMES.write_text(json.dumps({"began": began, "parts": parts}) + "\n")
    sys.stdout.flush()
    os.execvp(command[0], [*command])


def set_up(venv: Path, command: Sequence[str], more: Sequence[str], *, packages_alone: bool) -> None:
    """Set up what is missing, and execute the command, if any.

    Raises:
        ExceptionGroup: Of `SetupError`.
    """
    began, started = time.time(), time.monotonic()
    packages = [] if is_ready(venv) and not more else [packages_job(venv, more)]
    beside = [] if more or packages_alone else [control_plane_job(venv)]  # else a package may bring it
    if command:
        for job in beside:
            print(f"setup: {job.name} in the background; its log is {start_in_background(job)}", flush=True)
        beside.clear()
    asyncio.run(obtain([*packages, *beside]))
    mark(venv)
    if more:
        later = control_plane_job(venv)
        start_in_background(later) if command else asyncio.run(obtain([later]))
    seconds = time.monotonic() - started
    print(f"setup: done in {seconds:.0f} s", flush=True)
    if command:
        become(command, seconds, began)


def main() -> int:
    """Set up what is missing."""
    parser = argparse.ArgumentParser(description="Set up the environment and the control plane.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--wheel", action="append", default=[], help="a further package, such as make wheel's"
    )
    parser.add_argument("--packages", action="store_true", help="no control plane beside them")
    parser.add_argument("command", nargs="*", help="what to become when the packages are there")
    options = parser.parse_args()
    failures: list[BaseException] = []
    try:
        set_up(options.venv.absolute(), options.command, options.wheel, packages_alone=options.packages)
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
        sys.exit("setup: interrupted; what was obtained is kept, `make setup` goes on from there")
