"""Ends a command with all that it has started: everything in its session, whoever the parent is by now.

Standard library only, for the runtime. What has made a session of its own, a daemon, goes on.
"""

import contextlib
import os
import signal


def kill_session(leader: int, number: int = signal.SIGKILL) -> None:
    """Signal each process whose session was made by ``leader``."""
    for name in os.listdir("/proc"):
        if name.isdigit() and _session(name) == leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), number)


def _session(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may have any character.
    return int(text[text.rindex(b")") + 2 :].split()[3])
