"""Run one of the programs as a child of a container's first process, and exit with its status.

    python -m parameter_server.supervise worker --master=…

A container's first process cannot be killed or stopped from within the container, but its child can, so
that an exercise can kill a worker. A killed *master* is restarted at once in the same pod: it reads its
state and continues within a second or two. A worker or server is not restarted: its pod ends, and the
master replaces it. The child exits without finalizing the interpreter, which takes a second or
more with torch and would keep resources from other jobs.
"""

import atexit
import os
import runpy
import signal
import sys
from types import FrameType
from typing import NoReturn

MAX_RESTARTS = 20
ENDINGS = (signal.SIGTERM, signal.SIGINT)


def _run(role: str, flags: list[str]) -> NoReturn:
    """Run the program in this process, and exit with its status; a traceback is printed as usual."""
    sys.argv = [role, *flags]
    code: object = 0
    try:
        runpy.run_module(f"parameter_server.{role}", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code or 0
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(argv: list[str]) -> int:
    """Run ``parameter_server.<first argument>`` with the other arguments; return its exit status."""
    role, *flags = argv
    child, code = 0, 0
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        os.kill(child, number)

    for _ in range(1 + (MAX_RESTARTS if role == "master" else 0)):
        child = os.fork()
        if child == 0:
            _run(role, flags)
        for ending in ENDINGS:
            signal.signal(ending, forward)
        _, status = os.waitpid(child, 0)
        for ending in ENDINGS:
            signal.signal(ending, signal.SIG_DFL)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0 or received:
            break
        sys.stderr.write(f"the {role} was killed by signal {-code}\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
