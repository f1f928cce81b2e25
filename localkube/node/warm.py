"""The warm parent: a process that has imported torch and computed nothing, and forks containers.

Most of the time between a training pod's start and its first step goes into ``import torch``. Here that is done
once; a container whose command is the kit's Python begins where the import ends. The spawner starts this
program inside the site, sends one order for each container, and gets the process's id back; containers are
children of the site's PID 1 like all others. It has a single thread and starts none, because a fork copies only one.

What a command must be for this: ``warm_command.py``. What the fork does to look like a new interpreter:
``warm_python.py``. torchrun's workers: ``warm_torchrun.py``.
"""

import sys

_MODULES_AT_START = set(sys.modules)

import argparse
import contextlib
import gc
import importlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from localkube.node import messages, sandbox, warm_python, warm_torchrun
from localkube.node.warm_native import Become

# What a trainer and torchrun's agent import, also late: some of it only when they are well under way.
MODULES = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.run",
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
)

Launch = Callable[[dict[str, Any], dict[str, int], Callable[[], NoReturn]], int]


def load(names: list[str]) -> list[str]:
    """Import modules, and return the names of those that are there."""
    # With one thread, because OpenBLAS starts its own when it is loaded; each fork gets its own number.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    loaded = []
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
            loaded.append(name)
    # Objects that the collector does not touch stay on pages shared with all forks.
    gc.collect()
    gc.freeze()
    return loaded


def serve(sock: socket.socket, fresh: warm_python.Fresh, *, launch: Launch) -> None:
    """Carry out orders until the spawner closes its end.

    Raises:
        Become: In a container, on the way to its program.
    """
    while received := messages.receive(sock):
        order, descriptors = received
        try:
            answer = {"pid": _start(sock, order, descriptors, fresh, launch)}
        except sandbox.LaunchError as error:
            answer = {"error": error.message, "stage": error.stage}
        except (OSError, LookupError, TypeError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}", "stage": "sandbox"}
        finally:
            _close(descriptors)
        messages.send(sock, answer, [])


def _start(sock: socket.socket, order: dict[str, Any], descriptors: list[int], fresh: Any, launch: Launch) -> int:
    plan, argv, env = order["warm"], order["argv"], order["env"]
    fds = dict(zip(order["fds"], descriptors, strict=True))

    def become() -> NoReturn:
        # Closed by now; the program may get the same numbers for files of its own.
        sock.detach()
        descriptors.clear()
        with _no_exit():
            last = warm_torchrun.prepare(plan, fresh)
            warm_python.run(plan, argv, env, fresh, last=last)

    return launch(order, fds, become)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@contextlib.contextmanager
def _no_exit() -> Iterator[None]:
    """Let ``Become`` through the places that end the process whatever happens.

    The sandbox never returns into its caller's code in the child; a fork that becomes a program is the exception.
    """
    try:
        yield
    except Become:
        _real_exit.append(os._exit)
        os._exit = lambda status: None
        raise
    except BaseException:
        traceback.print_exc()
        raise


_real_exit: list[Callable[[int], NoReturn]] = []


def main(arguments: list[str] | None = None, *, launch: Launch = sandbox.launch) -> None:
    parser = argparse.ArgumentParser(description="Fork containers from an interpreter that has imported torch.")
    parser.add_argument("--fd", type=int, default=os.environ.get("FD_0"), help="the spawner's socket (FD_0)")
    parser.add_argument("--module", action="append", help="import this, in place of the default list")
    settings = parser.parse_args(arguments)
    sock = socket.socket(fileno=int(settings.fd))
    sock.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is not for us
    began = time.monotonic()
    fresh = warm_python.Fresh(_MODULES_AT_START)
    loaded = load(settings.module or list(MODULES))
    if sys.getfilesystemencoding() != "utf-8" or len(os.listdir("/proc/self/task")) != 1:
        sys.exit("the warm parent needs a UTF-8 locale, and modules that start no threads")
    messages.send(sock, {"ready": round(time.monotonic() - began, 3), "imports": loaded}, [])
    try:
        serve(sock, fresh, launch=launch)
    except ConnectionError:
        return
    except Become:
        os._exit = _real_exit.pop()
        raise


if __name__ == "__main__":
    main()
