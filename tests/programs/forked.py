"""Programs of Python as processes of their own, forked from one that has imported torch.

The imports take two to five seconds of a core, and tests start some fifty ranks.
"""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from ctypes import CDLL
from multiprocessing.connection import Connection
from pathlib import Path

from torch.distributed import run

TORCHRUN = Path(run.__file__)
CONTEXT = multiprocessing.get_context("forkserver")
# The first optimizer imports torch._dynamo, which takes as long as torch itself.
PARTS = ("_dynamo", "distributed.checkpoint", "distributed.fsdp", "distributed.pipelining", "distributed.run")
CONTEXT.set_forkserver_preload([*(f"torch.{part}" for part in PARTS), "grpc", "numpy"])


def end_with_parent() -> None:
    """Let this process be killed with the one that it was forked from: nothing outlives a killed test."""
    CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def run_as_main(path: str, arguments: list[str]) -> None:
    """Run a file as ``python path arguments`` does."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


class Program:
    """A running program with `stdout`, `communicate`, `kill` and `returncode` of ``subprocess.Popen``."""

    def __init__(
        self, path: Path, *arguments: str, environment: Mapping[str, str], errors: Path | None = None
    ) -> None:
        reader, writer = CONTEXT.Pipe(duplex=False)
        words = str(path), [str(argument) for argument in arguments], dict(environment)
        self._process = CONTEXT.Process(target=_start, args=(writer, errors, *words))
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for the program's end and return what it has written to stdout."""
        with self.stdout:
            text = self.stdout.read()
        self._process.join(timeout)
        return text, None

    def kill(self) -> None:
        self._process.kill()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


def _start(
    output: Connection, errors: Path | None, path: str, arguments: list[str], environment: dict[str, str]
) -> None:
    import torch

    end_with_parent()
    os.dup2(output.fileno(), 1)
    if errors:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    sys.stdout.reconfigure(line_buffering=True)  # as of `python -u`, by which torchrun starts ranks
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    run_as_main(path, arguments)
