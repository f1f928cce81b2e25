"""Executing one notebook: a process of its own, ended when the run has to stop.

A process of its own because nbclient takes over the signal handlers of the one that it runs in. What happened
is in the executed notebook, and read from there.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from smoke.stopping import Stopping

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "execute_notebook.py"
PATIENCE = 30  # seconds that an interrupted notebook has to shut its kernel down


def execute(
    notebook: Path,
    output: Path,
    *,
    parameters: Mapping[str, object],
    environment: Mapping[str, str],
    stopping: Stopping,
) -> int:
    """Execute a notebook, writing it to ``output``, and return the process's exit status.

    In a session of its own: Ctrl-C at the terminal reaches the caller alone, which decides what happens.
    """
    words = [f"{name}={json.dumps(value)}" for name, value in parameters.items()]
    process = None
    try:
        with stopping.held():
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(notebook), str(output), *words],
                cwd=ROOT,
                env=os.environ | dict(environment),
                start_new_session=True,
            )
        return process.wait()
    finally:
        _end(process)


def _end(process: subprocess.Popen | None) -> None:
    """End the process, its kernel first; what is left of its session goes with it."""
    if process is not None and process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
