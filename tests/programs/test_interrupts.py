"""Ctrl-C ends a command without a traceback and with 130, at every moment of its first second."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..rows import slow

COMMANDS = {
    "trainyard": ["-m", "trainyard_kit.cli", "doctor"],
    "its help": ["-m", "trainyard_kit.cli", "--help"],
    "a group's error": ["-m", "trainyard_kit.cli", "cluster", "status", "no-such-cluster"],
    "localkube": ["-m", "localkube", "list"],
    "a task": ["tools/dev.py", "help"],
    "notebooks": ["tools/run_notebooks.py", "--help"],
}
# The interrupt comes where Python prints an exception and goes on, as in the callbacks of its imports.
IN_A_CALLBACK = """
import os, signal, sys, weakref
from trainyard_kit.cli import __main__ as command
class Lock: pass
def interrupted():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lock = Lock()
    reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
    del lock
    while True: signal.pause()
sys.modules["trainyard_kit.cli.main"] = type(sys)("main")
sys.modules["trainyard_kit.cli.main"].main = interrupted
command.main()
"""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("tenths", [1, 4, *slow(2, 7, 10, 13, 16, 19)])
def test_an_interrupt_in_the_first_seconds_shows_no_traceback(command, tenths, tmp_path):
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    argv = [sys.executable, *COMMANDS[command]]
    running = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The interpreter has no handler of ours while it starts itself.
    while running.poll() is None and not _handles_interrupts(running.pid):
        time.sleep(0.001)
    time.sleep(tenths / 10)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    # What the interpreter says of its own start, before it runs anything of ours, is not ours to change.
    ours = str(Path(__file__).parents[2]) in errors or "Exception ignored" in errors
    first = ("Fatal Python error: init_", "line 0, in <module>", "in <module>\n    import signal\n")
    before_ours = any(words in errors for words in first)
    assert not ours or before_ours or "Traceback" not in errors, errors
    assert running.returncode in (130, -signal.SIGINT, 0, 1)  # a shell shows 130 for both


def test_an_interrupt_in_a_callback_of_an_import_is_not_lost_and_shows_no_traceback():
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 130)


def _handles_interrupts(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGINT - 1))
