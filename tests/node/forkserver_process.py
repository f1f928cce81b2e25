"""The forkserver with a stand-in for the runtime: a fork that leaves its caller, and no namespaces."""

import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from localkube.runtime import container
from localkube.runtime.container_spec import ContainerSpec
from localkube.runtime.forkserver import server


def launch(
    request: dict[str, Any], fds: dict[str, int], writer: int, main: Callable[[], NoReturn]
) -> NoReturn:
    """Leave a fork behind, as the runtime does: whoever adopts orphans becomes its parent."""
    try:
        with container.stage(writer, "sandbox"):
            cwd = ContainerSpec.from_dict(request["spec"]).process.cwd
            os.setsid()
        pid = os.fork()
        if pid == 0:
            _container(cwd, fds, main)
        container.report_pid(writer, pid)
    finally:
        os._exit(0)


def _container(cwd: str, fds: dict[str, int], main: Callable[[], NoReturn]) -> NoReturn:
    try:
        os.chdir(cwd)
        os.umask(0o022)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if name in fds:
                os.dup2(fds[name], number)
            else:
                os.close(number)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is not None:
                signal.signal(number, signal.SIG_DFL)
        os.closerange(3, 1 << 20)
        main()
    finally:
        os._exit(126)


if __name__ == "__main__":
    server.main(launch=launch)
