"""Run a command both ways, as a new interpreter and forked by the forkserver, and keep what it did."""

import ctypes
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from localkube.runtime import messages
from localkube.runtime.container_spec import ContainerSpec, ProcessSpec, StartRequest
from localkube.runtime.forkserver.command import OPENMP_ENVIRONMENT, plan

PR_SET_CHILD_SUBREAPER = 36
REPOSITORY = Path(__file__).parent.parent.parent
SCRIPTS = tempfile.TemporaryDirectory(prefix="commands-")
PYTHON = str(Path(sys.prefix) / "bin" / "python")


@dataclass(frozen=True)
class Outcome:
    """What a process wrote, and its status as of ``subprocess``."""

    stdout: str
    stderr: str
    code: int

    def without_addresses(self) -> "Outcome":
        return Outcome(
            *(re.sub(r"0x[0-9a-f]{6,}", "0x", text) for text in (self.stdout, self.stderr)), self.code
        )


def same(outcomes: tuple[Outcome, Outcome]) -> Outcome:
    """Assert that both ways did the same, and return what they did."""
    cold, forked = (outcome.without_addresses() for outcome in outcomes)
    assert forked == cold
    return forked


class Process:
    """A running container: its pid, and the reading ends of its output."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self._readers = {stdout: bytearray(), stderr: bytearray()}
        self._open = {stdout, stderr}
        self._closed: set[int] = set()

    def read_until(self, text: str, *, timeout: float = 60) -> str:
        """Return the standard output so far, once ``text`` is in it."""
        output = next(iter(self._readers.values()))
        self._pump(timeout, lambda: text.encode() in output)
        return output.decode()

    def stop_reading(self) -> None:
        """Close the reading end of its standard output."""
        reader = next(iter(self._readers))
        os.close(reader)
        self._open.discard(reader)
        self._closed.add(reader)

    def finish(self, *, timeout: float = 120) -> Outcome:
        self._pump(timeout, lambda: False)
        for reader in self._readers.keys() - self._closed:
            os.close(reader)
        status = self._wait(timeout)
        stdout, stderr = (bytes(data).decode(errors="replace") for data in self._readers.values())
        return Outcome(stdout, stderr, os.waitstatus_to_exitcode(status))

    def _wait(self, timeout: float) -> int:
        """Wait for its end; a fork is our child once its helper has ended, which may be after its own."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return os.waitpid(self.pid, 0)[1]
            except ChildProcessError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _pump(self, timeout: float, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout
        while self._open and not done():
            ready, _, _ = select.select(list(self._open), [], [], max(0, deadline - time.monotonic()))
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"still running after {timeout} s: {self._readers}")
            for reader in ready:
                data = os.read(reader, 65536)
                self._readers[reader] += data
                if not data:
                    self._open.discard(reader)


def send_request(sock: socket.socket, request: dict, fds: Sequence[int]) -> dict:
    """Send a request to a forkserver as the runtime does, and return what is reported of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        messages.send(ours, request, list(fds))
        with theirs:
            messages.send(sock, {}, [theirs.fileno()])
        reported = b"".join(iter(lambda: ours.recv(65536), b""))
    return {name: value for line in reported.splitlines() for name, value in json.loads(line).items()}


def without_command(argv: Sequence[str]) -> list[str]:
    """Turn ``-c`` into a script where such a command starts cold: since Python 3.13."""
    if sys.version_info < (3, 13) or "-c" not in argv:
        return list(argv)
    at = argv.index("-c")
    script = Path(SCRIPTS.name, f"{zlib.crc32(argv[at + 1].encode())}.py")
    script.write_text(argv[at + 1])
    return [*argv[:at], str(script), *argv[at + 2 :]]


class Pair:
    """A forkserver, and the way to start commands with and without it.

    Example:
        >>> with Pair() as pair:
        ...     cold, forked = pair.both(["python", "-c", "print(1)"])
    """

    def __init__(self, *, modules: Sequence[str] = ()) -> None:
        self._modules = modules
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        flags = [word for name in self._modules for word in ("--module", name)]
        program = str(Path(__file__).with_name("forkserver_process.py"))
        self.process = subprocess.Popen(
            [PYTHON, program, "--fd", str(theirs.fileno()), *flags],
            pass_fds=[theirs.fileno()],
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/tmp",
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(REPOSITORY),
                **OPENMP_ENVIRONMENT,
            },
        )
        theirs.close()
        self.ready = messages.receive(self._socket)[0]
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()
        self.process.wait(timeout=120)

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{Path(PYTHON).parent}:/usr/bin:/bin"
        base = {
            "PATH": path,
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        return base | {"OPENBLAS_NUM_THREADS": "1"} | more

    def request(self, request: dict, fds: Sequence[int]) -> dict:
        """Send a request as it is, and return what is reported of it."""
        return send_request(self._socket, request, fds)

    def forked(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: int | None = -3
    ) -> Process:
        """Start a command by the forkserver, and fail if it may not be."""
        argv = without_command(argv)
        chosen = plan(argv, env, python=PYTHON, path=env["PATH"])
        assert chosen is not None, f"{argv} would start cold"
        null = os.open(os.devnull, os.O_RDONLY)
        pipes = [os.pipe(), os.pipe()]
        descriptors = {"stdout": pipes[0][1], "stderr": pipes[1][1]}
        if stdin is not None:
            descriptors["stdin"] = null if stdin == subprocess.DEVNULL else stdin
        variables = tuple(f"{name}={value}" for name, value in env.items())
        spec = ContainerSpec(ProcessSpec(tuple(argv), variables, str(cwd)))
        request = asdict(StartRequest(spec, fork_plan=chosen)) | {"fds": list(descriptors)}
        answer = self.request(request, list(descriptors.values()))
        for descriptor in (null, pipes[0][1], pipes[1][1]):
            os.close(descriptor)
        assert "pid" in answer, answer
        return Process(answer["pid"], pipes[0][0], pipes[1][0])

    def cold(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: int | None = -3
    ) -> Process:
        """Start a command as the runtime does without a forkserver."""
        argv = without_command(argv)
        pipes = [os.pipe(), os.pipe()]
        wrapper = [] if stdin is not None else ["sh", "-c", 'exec "$@" <&-', "sh"]
        process = subprocess.Popen(
            [*wrapper, *argv],
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=pipes[0][1],
            stderr=pipes[1][1],
            start_new_session=True,
        )
        os.close(pipes[0][1])
        os.close(pipes[1][1])
        process.returncode = 0  # Process waits for it
        return Process(process.pid, pipes[0][0], pipes[1][0])

    def both(self, argv: Sequence[str], *, cwd: Path = Path("/"), **env: str) -> tuple[Outcome, Outcome]:
        """Run a command to its end, cold and forked."""
        environment = self.environment(**env)
        cold = self.cold(argv, env=environment, cwd=cwd).finish()
        return cold, self.forked(argv, env=environment, cwd=cwd).finish()
