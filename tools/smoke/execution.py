"""The processes of a run: a separate process for each notebook, and waits for prerequisites.

The processes are separate because nbclient replaces signal handlers. Results are read from the executed
notebook.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from localkube.runtime.forkserver.command import OPENMP_ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "execute_notebook.py"
PATIENT_SECONDS = 4 * 3600
SHUTDOWN_SECONDS = 30  # for an interrupted notebook to shut down its kernel


class Ended(Exception):
    """The run ends; no further process is started."""


class Processes:
    """Processes that threads start and wait for, and that one call ends.

    Each has its own session, so Ctrl-C reaches only the caller.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, command: Sequence[str], *, environment: Mapping[str, str]) -> int:
        """Run a command to its end and return its exit status.

        Raises:
            Ended: `end` was called, before or meanwhile.
        """
        with self._lock:
            if self._ended:
                raise Ended
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                # Lanes share cores: a kernel's threads that wait for one another should not spin.
                env=OPENMP_ENVIRONMENT | os.environ | dict(environment),
                start_new_session=True,
            )
            self._running.add(process)
        status = process.wait()
        with self._lock:
            self._running.remove(process)
            if self._ended:
                raise Ended
        return status

    def running(self) -> list[subprocess.Popen[bytes]]:
        """Return the processes that run now."""
        with self._lock:
            return list(self._running)

    def end(self) -> None:
        """End every process with its session, a notebook's kernel first."""
        with self._lock:
            self._ended = True
        running = self.running()
        for process in running:
            process.terminate()
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def notebook_command(
    notebook: Path, output: Path, *, label: str, parameters: Mapping[str, object], patient: bool = False
) -> list[str]:
    """Return the command that executes a notebook into ``output``; its lines begin with ``label``.

    Cells may take hours if it is ``patient``, as with the sizes of a profile.
    """
    options = [f"--cell-seconds={PATIENT_SECONDS}"] if patient else []
    values = [f"{name}={json.dumps(value)}" for name, value in parameters.items()]
    return [sys.executable, str(SCRIPT), "--label", label, *options, str(notebook), str(output), *values]
