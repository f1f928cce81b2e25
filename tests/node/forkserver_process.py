"""The forkserver with a stand-in for the runtime: a fork that leaves its caller, and no namespaces."""

import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from localkube.runtime import container
from localkube.runtime.container_spec import StartRequest
from localkube.runtime.forkserver import server


def start(
    message: dict[str, Any], request: StartRequest, fds: dict[str, int], main: Callable[[], NoReturn]
) -> int:
    """Fork twice, as the runtime does, so that whoever adopts orphans becomes the container's parent."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            os.setsid()
            pid = os.fork()
            if pid == 0:
                _container(request.spec.process.cwd, fds, main)
            os.write(writer, str(pid).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(middle, 0)
    answer = os.read(reader, 32)
    os.close(reader)
    if not answer:
        raise container.ContainerStartError("sandbox", "no answer")
    return int(answer)


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
    server.main(start=start)
