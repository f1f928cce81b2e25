"""Run or print the commands of a developer task (``dev.py``).

What any task needs is here: the environment's programs, its set-up, pytest, pinned packages. Which tasks
there are, and what each runs, is in ``dev.py``.
"""

import getpass
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAST_FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")  # pytest's
TESTS_FAILED = 1  # pytest's exit status where all tests have run


class TaskError(Exception):
    """The command or task that failed.

    Attributes:
        status: The command's exit status; 0 where none has run.
    """

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


class Commands:
    """The commands of a task with its settings, which are run in order or printed."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words
        self.bin = Path(words.get("VENV") or ".venv") / "bin"
        self.python = self.bin / "python"
        # Where a shell or an image forbids bytecode, each of hundreds of processes would compile its imports.
        self.environment = {
            key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
        }

    def word(self, name: str, default: str = "") -> str:
        """Return a setting's value, the default if it is unset or empty."""
        return self.words.get(name) or default

    def many(self, name: str, default: str = "") -> list[str]:
        """Return the values of a setting that takes several."""
        return self.word(name, default).split()

    def flags(self, names: str) -> list[str]:
        """Return an option for each given setting: TIME_LIMIT=30m is --time-limit=30m."""
        return [
            f"--{name.lower().replace('_', '-')}={self.words[name]}"
            for name in names.split()
            if self.word(name)
        ]

    def run(self, *command: str | Path, **environment: str) -> None:
        """Run a command in the repository's root.

        Raises:
            TaskError: It failed.
        """
        words = [str(word) for word in command]
        if self.word("DRY_RUN"):
            print(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *words]))
            return
        try:
            process = subprocess.Popen(words, cwd=ROOT, env=self.environment | environment)
        except FileNotFoundError:
            raise TaskError(f"there is no {words[0]}: install it, or `make setup`") from None
        interrupted = False
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:  # the command has it from the terminal as well, and tidies up
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt
        if process.returncode:
            what = f"{shlex.join(words[:4])} ended with {process.returncode}"
            raise TaskError(what, process.returncode)

    def setup(self, *command: str | Path, packages: bool = False) -> None:
        """Set up what is missing, then run the command; Kubernetes may still be building."""
        bundle = self.word("BUNDLE")
        if bundle:
            self.run(sys.executable, "-m", "localkube.bundles", "use", bundle)
        wheel = self.word("WHEEL")
        wheels = [wheel] if Path(ROOT, wheel).is_file() else wheel.split()
        more = [*(f"--wheel={path}" for path in wheels), *(["--packages"] if packages else [])]
        start = [sys.executable, "tools/setup.py", f"--venv={self.bin.parent}"]
        self.run(*start, *more, *(["--", *command] if command else []))

    def module(self, *words: str | Path) -> None:
        """Run Python of the environment."""
        self.run(self.python, *words)

    def pytest(self, *words: str, **environment: str) -> None:
        """Run tests one after the other."""
        self.run(self.python, "-m", "pytest", *words, **environment)

    def side_by_side(self, marker: str, *paths: str, workers: str = "", **environment: str) -> None:
        """Run several test files at a time, as most wait rather than compute; each worker has own clusters.

        Files begin in the order of tests/conftest.py: what takes longest first, and unit tests fill the gaps.
        With ``RECHECK=10``, up to so many that fail are run once more, alone on the machine.
        """
        spread = ["-ra", "--dist", "loadfile", "--no-loadscope-reorder"]
        workers = workers or self.word("WORKERS", "4")
        try:
            self.pytest(*spread, "-n", workers, "-m", marker, *paths, **environment)
        except TaskError as error:
            if error.status != TESTS_FAILED:  # it was interrupted, or has not collected all: more has not run
                raise
            failed = json.loads((ROOT / LAST_FAILED).read_text()) if (ROOT / LAST_FAILED).is_file() else {}
            if not 0 < len(failed) <= int(self.word("RECHECK", "0")):
                raise
            print("FAILED BESIDE OTHERS, run once more alone:", *failed, sep="\n  ", flush=True)
            self.pytest(
                "-ra", "--last-failed", "--last-failed-no-failures=none", "-m", marker, *paths, **environment
            )
            print("PASSED ALONE; what failed beside others needs a look all the same:", *failed, sep="\n  ")

    def install(self, *packages: str, to: str = "") -> None:
        """Install pinned packages into the environment, or into another one below build/."""
        python = self.python
        if to:
            self.run(self.bin / "uv", "venv", "--quiet", "--allow-existing", "--python", self.python, to)
            python = Path(to, "bin", "python")
        uv: list[str | Path] = [self.bin / "uv", "pip", "install", "--quiet", "--python", python]
        self.run(*uv, "-c", "constraints.txt", *packages)


def jupyter_options(commands: Commands, environment: Mapping[str, str], *, root: bool) -> list[str]:
    """List the options of JupyterLab on this machine; print notes for its user.

    Raises:
        TaskError: PORT is no port.
    """
    options, port, address = list[str](), commands.word("PORT"), commands.word("IP")
    if port and not (port.isdecimal() and int(port) < 2**16):
        raise TaskError(f"PORT={port} is no port: a number below 65536, such as 8888")
    if root:
        print("You are root, and so is every notebook: it may change any file of this machine.", flush=True)
        options.append("--allow-root")
    over_ssh = environment.get("SSH_CONNECTION", "").split()
    if over_ssh and not address:
        port = port or str(free_port(8888))
        print(f"On the machine where your browser is:\n\n    {tunnel(over_ssh, port)}\n", flush=True)
        options.append("--no-browser")
    if port:  # another one than that of the tunnel would be in vain
        options += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    return [*options, f"--ServerApp.ip={address}"] if address else options


def tunnel(connection: Sequence[str], port: str) -> str:
    """Write the command that forwards a port over ssh.

    Args:
        connection: As in SSH_CONNECTION: the client's address and port, the server's address and port.
        port: On both machines.

    """
    server, server_port = [*connection, "", "", "", ""][2:4]
    port_option = [] if server_port in ("", "22") else ["-p", server_port]
    where = f"{getpass.getuser()}@{server or socket.gethostname()}"
    return shlex.join(["ssh", "-N", "-L", f"{port}:localhost:{port}", *port_option, where])


def free_port(first: int) -> int:
    """Find the first free port on the loopback, starting at this one."""
    for port in range(first, 2**16):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise TaskError(f"no port from {first} on is free: PORT=")
