"""The supervisor's process, started before its cluster has files: its imports take as long as those."""

import contextlib
import os
import site
import socket
import subprocess
import sys
from pathlib import Path

from localkube.paths import ClusterPaths, private_opener


class SupervisorProcess(contextlib.AbstractContextManager["SupervisorProcess"]):
    """A supervisor that waits until `begin`, and ends if that is not called before the context's end."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths
        self._socket, child_end = socket.socketpair()
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "localkube.supervisor", str(paths.root), str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
                start_new_session=True,
                cwd="/",
                env=python_environment(),
            )

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def begin(self, listener: socket.socket, *others: socket.socket) -> None:
        """Start the cluster.

        Args:
            listener: The API's on the host.
            others: Sockets that it keeps open.
        """
        with open(self._paths.logs / "supervisor.log", "ab", opener=private_opener) as output:
            descriptors = [output.fileno(), *(sock.fileno() for sock in (listener, *others))]
            with contextlib.suppress(BrokenPipeError):  # it has ended; the wait for it reports that
                socket.send_fds(self._socket, [b"begin"], descriptors)


def python_environment() -> dict[str, str]:
    """Build the environment of our own Python processes, without the user's secrets."""
    names = (
        *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"),
        *("TRAINYARD_LOG_LEVEL", "TRAINYARD_STAND_INS"),
    )
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {"PYTHONUNBUFFERED": "1"}
    source = str(Path(__file__).resolve().parents[2])
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if os.path.isabs(entry)]
    if source not in (*site.getsitepackages(), site.getusersitepackages(), *inherited):
        # A checkout. Installed packages are found anyway, and pods' paths are without what this names.
        inherited.insert(0, source)
    return environment | ({"PYTHONPATH": ":".join(inherited)} if inherited else {})
