"""A command on a terminal, as a person has it: what it prints is seen, what is typed goes to it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from .clusters import PATIENCE
from .restrictions import Enter


class Terminal:
    """Run a command on a new terminal; a context manager that kills it at the end."""

    def __init__(
        self, command: list[str], *, columns: int = 80, rows: int = 24, enter: Enter | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take(slave, enter),
        )
        os.close(slave)
        self.seen = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hear_of_size(self) -> None:
        """Tell the command that the size has changed, as a terminal's window does."""
        self.process.send_signal(signal.SIGWINCH)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> re.Match:
        """Read until what was printed since the last match has ``pattern``.

        Raises:
            AssertionError: It did not come within a minute, or the command ended without it.
        """
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            ready = left > 0 and select.select([self._master], [], [], left)[0]
            assert ready, f"{pattern} is not in {self.seen}"
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""
            assert data, f"it ended, and {pattern} is not in {self.seen}"
            self.seen += data.decode()
        self.seen = self.seen[match.end() :]
        return match

    def wait(self) -> int:
        """Return its exit code."""
        return self.process.wait(PATIENCE)


def _take(slave: int, enter: Enter | None):
    def take() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        if enter:
            enter()

    return take
