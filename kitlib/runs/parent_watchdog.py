"""Run a command until its parent process ends: ``python parent_watchdog.py PID FOLDER COMMAND …``.

A notebook's kernel may be killed, and torchrun's ranks have sessions of their own, so nothing else would
end them. All processes that the command leaves behind are killed; then its folder is removed. It imports the
standard library alone.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

STOP_SECONDS = 10  # from SIGTERM to SIGKILL
PR_SET_CHILD_SUBREAPER = 36


def main(parent: int, folder: str, command: list[str]) -> int:
    """Run the command to its end, or to that of the parent; return its exit status."""
    if sys.platform == "linux":  # orphans become children of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stops.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    life = _life_of(parent)
    poller.register(life, select.POLLIN | select.POLLHUP)
    deadline: float | None = None
    while child.poll() is None and (deadline is None or time.monotonic() < deadline):
        events = poller.poll(None if deadline is None else 1000 * max(0.0, deadline - time.monotonic()))
        if any(file == reader for file, _ in events):
            os.read(reader, 4096)
        ended = any(file == life for file, _ in events) or os.getppid() != parent
        if deadline is None and (stops or ended):
            deadline = time.monotonic() + STOP_SECONDS
            child.terminate()
            poller.unregister(life)
    if child.poll() is None:
        child.kill()
        child.wait()
    _kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _life_of(parent: int) -> int:
    """Open a descriptor that becomes readable when the parent ends: its pidfd, or else a pipe from it.

    Processes that the parent has forked hold the pipe open as well.
    """
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(parent)
    return sys.stdin.fileno()


def _kill_descendants() -> None:
    """Kill all processes below this one, and wait for them: as orphans they are its children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(state[1])
    below, pids = {root}, set[int]()
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        pids |= below
    return pids


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
