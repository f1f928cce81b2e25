"""Pseudo-terminals: one is opened inside the container, so that ``tty`` names a device which is there.

Standard library only: both the sandbox, in a container, and the agent, for a new size, use it.
"""

import fcntl
import os
import struct
import termios


def take_terminal() -> int:
    """Become the leader of a session with a new terminal as its own, and return the terminal's master.

    The caller's standard streams are the terminal afterwards. The master goes to who reads and writes there.
    """
    os.setsid()
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.close(slave)
    return master


def resize(master: int, *, columns: int, rows: int) -> None:
    """Give a terminal a new size; the kernel tells its foreground processes by SIGWINCH."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
