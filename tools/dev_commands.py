"""Run or print the commands of a developer task (``dev.py``).

It has what all tasks need: the environment's programs and set-up, pytest, pinned packages. The tasks are in
``dev.py``.
"""

import getpass
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAST_FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")  # pytest's
TESTS_FAILED = 1  # pytest's exit status where all tests have run


class TaskError(Exception):
    """The command or task that failed.

    Attributes:
        status: The command's exit status; 0 if none has run.
    """

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


class Commands:
    """The commands of a task, with its settings; they are run in order, or printed."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.settings = words
        self.bin = Path(words.get("VENV") or ".venv") / "bin"
        self.python = self.bin / "python"
        # Without bytecode files, hundreds of processes would each compile their imports.
        self.environment = {
            key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
        }

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting's value, the default if it is unset or empty."""
        return self.settings.get(name) or default

    def settings_list(self, name: str, default: str = "") -> list[str]:
        """Return the values of a setting that takes several."""
        return self.setting(name, default).split()

    def flags(self, names: str) -> list[str]:
        """Return an option for each given setting: TIME_LIMIT=30m is --time-limit=30m."""
        return [
            f"--{name.lower().replace('_', '-')}={self.settings[name]}"
            for name in names.split()
            if self.setting(name)
        ]

    def run(self, *command: str | Path, **environment: str) -> None:
        """Run a command in the repository's root.

        Raises:
            TaskError: It failed.
        """
        arguments = [str(setting) for setting in command]
        if self.setting("DRY_RUN"):
            print(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *arguments]))
            return
        try:
            process = subprocess.Popen(arguments, cwd=ROOT, env=self.environment | environment)
        except FileNotFoundError:
            raise TaskError(f"there is no {arguments[0]}: install it, or `make setup`") from None
        interrupted = False
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:  # the command gets the signal too, and cleans up
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt
        if process.returncode:
            message = f"{shlex.join(arguments[:4])} ended with {process.returncode}"
            raise TaskError(message, process.returncode)

    def setup(self, *command: str | Path, packages: bool = False) -> None:
        """Set up what is missing, then run the command; Kubernetes may still be building."""
        bundle = self.setting("BUNDLE")
        if bundle:
            self.run(sys.executable, "-m", "localkube.bundles", "use", bundle)
        wheel = self.setting("WHEEL")
        wheels = [wheel] if Path(ROOT, wheel).is_file() else wheel.split()
        options = [*(f"--wheel={path}" for path in wheels), *(["--packages"] if packages else [])]
        start = [sys.executable, "tools/setup.py", f"--venv={self.bin.parent}"]
        self.run(*start, *options, *(["--", *command] if command else []))

    def module(self, *arguments: str | Path) -> None:
        """Run Python of the environment."""
        self.run(self.python, *arguments)

    def pytest(self, *arguments: str, **environment: str) -> None:
        """Run tests one after the other."""
        self.run(self.python, "-m", "pytest", *arguments, **environment)

    def side_by_side(self, marker: str, *paths: str, workers: str = "", **environment: str) -> None:
        """Run test files in parallel, as most wait rather than compute; each worker has its own clusters.

        Files start in the order of tests/conftest.py: the longest first, with unit tests in the gaps. With
        ``RECHECK=10``, up to ten failed tests are run once more, one at a time.
        """
        spread = ["-ra", "--dist", "loadfile", "--no-loadscope-reorder"]
        workers = workers or self.setting("WORKERS", "4")
        try:
            self.pytest(*spread, "-n", workers, "-m", marker, *paths, **environment)
        except TaskError as error:
            if error.status != TESTS_FAILED:  # interrupted, or not all tests collected
                raise
            failed = json.loads((ROOT / LAST_FAILED).read_text()) if (ROOT / LAST_FAILED).is_file() else {}
            if not 0 < len(failed) <= int(self.setting("RECHECK", "0")):
                raise
            print("FAILED IN PARALLEL, run again alone:", *failed, sep="\n  ", flush=True)
            self.pytest(
                "-ra", "--last-failed", "--last-failed-no-failures=none", "-m", marker, *paths, **environment
            )
            print("PASSED ALONE; failures in parallel must still be examined:", *failed, sep="\n  ")

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
        TaskError: PORT is not a valid port.
    """
    options, port, address = list[str](), commands.setting("PORT"), commands.setting("IP")
    if port and not (port.isdecimal() and int(port) < 2**16):
        raise TaskError(f"PORT={port} is not a port: use a number below 65536, such as 8888")
    if root:
        print("You are root, so notebooks may change any file of this machine.", flush=True)
        options.append("--allow-root")
    connection = environment.get("SSH_CONNECTION", "").split()
    if connection and not address:
        port = port or str(free_port(8888))
        print(f"On the machine where your browser is:\n\n    {tunnel(connection, port)}\n", flush=True)
        options.append("--no-browser")
    if port:  # the tunnel needs exactly this port
        options += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    return [*options, f"--ServerApp.ip={address}"] if address else options


def tunnel(connection: Sequence[str], port: str) -> str:
    """Write the command that forwards a port over ssh.

    Args:
        connection: As in SSH_CONNECTION: the client's address and port, the server's address and port.
        port: The port on both machines.
    """
    server, server_port = [*connection, "", "", "", ""][2:4]
    port_option = [] if server_port in ("", "22") else ["-p", server_port]
    destination = f"{getpass.getuser()}@{server or socket.gethostname()}"
    return shlex.join(["ssh", "-N", "-L", f"{port}:localhost:{port}", *port_option, destination])


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
    raise TaskError(f"no port from {first} on is free: set PORT=")


def run_each(commands: Commands, *tasks: Callable[[Commands], None]) -> None:
    """Run every task, even after failures.

    Raises:
        TaskError: Some failed; it names them.
    """
    failed = []
    for task in tasks:
        name = task.__name__.replace("_", "-")
        try:
            task(commands)
        except TaskError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
    if failed:
        raise TaskError(f"failed: {' '.join(failed)}")
