"""Programs of Python as processes of their own, forked from one that has imported torch.

The imports take two to five seconds of a core, and tests start some fifty ranks.
"""

import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import CDLL
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from torch.distributed import run

TORCHRUN = Path(run.__file__)
TRAINERS = Path(__file__).parents[2] / "trainers"
CONTEXT = multiprocessing.get_context("forkserver")
# The first optimizer imports torch._dynamo, which takes as long as torch itself.
PARTS = ("_dynamo", "distributed.checkpoint", "distributed.fsdp", "distributed.pipelining", "distributed.run")
CONTEXT.set_forkserver_preload([*(f"torch.{part}" for part in PARTS), "grpc", "numpy"])
DEADLINE = 120


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def redirect(path: Path, *descriptors: int) -> None:
    """Let what this process writes to descriptors be appended to a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in descriptors:
        os.dup2(output, descriptor)


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

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self._process.pid, number)

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
        redirect(errors, 2)
    sys.stdout.reconfigure(line_buffering=True)  # as of `python -u`, by which torchrun starts ranks
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    run_as_main(path, arguments)


class Processes:
    """The processes of one run, by name; each writes its output to a file of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str | int, ForkServerProcess]()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exception) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()

    def fork(self, name: str | int, function: Callable[..., None], *arguments: object) -> ForkServerProcess:
        """Call a function in a new process; one that is started anew goes on with the file."""
        process = CONTEXT.Process(target=_call, args=(self.log(name), function, arguments))
        process.start()
        self.processes[name] = process
        return process

    def log(self, name: str | int) -> Path:
        """Return where a process's output is."""
        return self.folder / f"{name}.log"

    def events(self, event: str = "", *names: str | int) -> list[dict]:
        """Return what some processes, or all, have reported so far, by time."""
        records = []
        for name in names or self.processes:
            text = self.log(name).read_text() if self.log(name).exists() else ""
            lines = [line for line in text.splitlines() if line.startswith('{"event') and line.endswith("}")]
            records += [json.loads(line) | {"process": name} for line in lines]
        records = [record for record in records if event in ("", record["event"])]
        return sorted(records, key=lambda record: record["time"])

    def wait_for(self, true: Callable[[], object], what: str) -> object:
        """Wait until a function returns something true, and return that."""
        deadline = time.monotonic() + DEADLINE
        while not (value := true()):
            assert time.monotonic() < deadline, f"not seen: {what}\n{self.everything()}"
            time.sleep(0.02)
        return value

    def join(self, name: str | int) -> int:
        """Wait for a process's end; return its exit code."""
        self.processes[name].join(DEADLINE)
        code = self.processes[name].exitcode
        assert code is not None, f"{name} does not end\n{self.everything()}"
        return code

    def everything(self) -> str:
        """Return the end of all output, for the message of a failure."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)


def _call(log: Path, function: Callable[..., None], arguments: tuple) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of what it starts
    redirect(log, 1, 2)
    os.setpgid(0, 0)
    end_with_parent()
    function(*arguments)
