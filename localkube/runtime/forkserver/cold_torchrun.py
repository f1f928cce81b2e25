"""Run torchrun in a new interpreter that forks its workers, in a container that the forkserver did not start.

    python -P -m localkube.runtime.forkserver.cold_torchrun torchrun --nproc-per-node=1 train.py

torchrun itself imports all of torch, then starts each worker as a new interpreter, which imports it again.
This program imports it once, with the other modules that trainers import, forks a zygote (``torchrun.py``),
and becomes torchrun as a fork of the forkserver does (``interpreter.py``).
"""

# ruff: noqa: E402
import sys

_MODULES_AT_START = set(sys.modules)

import os

from localkube.runtime.forkserver import interpreter, server, torchrun
from localkube.runtime.forkserver.command import plan


def main() -> None:
    """Become the command in ``sys.argv``."""
    argv, env = sys.argv[1:], dict(os.environ)
    # A preloaded library of this process is also loaded in its forks.
    checked_env = {name: value for name, value in env.items() if name != "LD_PRELOAD"}
    container = plan(argv, checked_env, python=sys.executable, path=env.get("PATH", ""))
    if container is None:
        os.execvpe(argv[0], argv, env)
    state = interpreter.ForkserverState(_MODULES_AT_START)
    server.load(list(server.MODULES), state)
    if len(os.listdir("/proc/self/task")) != 1:
        interpreter.start_cold(container, env)
    last = torchrun.prepare(container, state)
    interpreter.run(container, env, state, last=last)


if __name__ == "__main__":
    main()
