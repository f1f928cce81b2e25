"""The forkserver: a process that has imported torch but run nothing with it, and forks containers.

Most of the time between a training pod's start and its first step goes into ``import torch``. The forkserver
imports it once; a container whose command is the kit's Python starts with the import done. The runtime starts
this program in its namespaces, and passes it a socket for each container's request, as to the launcher
(``runtime/launcher.py``): only the fork reads the request. It is single-threaded, because a fork copies only
one thread.

Which commands can be forked: ``command.py``. How the fork comes to look like a new interpreter:
``interpreter.py``. torchrun's workers: ``torchrun.py``.
"""

# ruff: noqa: E402
import sys

_MODULES_AT_START = set(sys.modules)

import argparse
import atexit
import contextlib
import gc
import importlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

from localkube.runtime import container, launcher, messages
from localkube.runtime.container_spec import ContainerSpec
from localkube.runtime.forkserver import interpreter, native, torchrun
from localkube.runtime.forkserver.command import ForkPlan
from localkube.runtime.forkserver.native import Become

# What trainers and torchrun's agent import, including imports after the start: an optimizer's first step
# imports torch._dynamo, which takes longer than torch itself.
MODULES = (
    "encodings.idna",
    "numpy",
    "numpy.random",
    "torch",
    "torch._dynamo",
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

Launch = Callable[[dict[str, Any], dict[str, int], int, Callable[[], NoReturn]], NoReturn]


def load(names: list[str], state: interpreter.ForkserverState) -> list[str]:
    """Import modules; returns the names of those that exist."""
    # One thread, because OpenBLAS starts its threads when it is loaded; each fork sets its own number.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or any(
        Path(path).exists() for path in ("/dev/kfd", "/dev/dxg")
    )
    # The first callback to be registered is the last to be called.
    if has_gpu:
        atexit.register(gc.unfreeze)  # and the driver's profilers write their output at exit
    else:
        atexit.register(state.hide_loaded)
        atexit.register(native.leave)
        atexit.register(native.end_collectives)
    loaded = []
    gc.disable()  # collections take a quarter of the time of imports, and find nothing
    with contextlib.nullcontext() if has_gpu else _absent("triton"):
        for name in names:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
                loaded.append(name)
    gc.enable()
    if not has_gpu:
        native.skip_destructors()
    state.loaded()
    # Objects that the collector does not touch stay on pages shared with all forks.
    gc.collect()
    gc.freeze()
    return loaded


@contextlib.contextmanager
def _absent(name: str) -> Iterator[None]:
    """Import without a package: Triton is for GPUs, and complains if its objects outlive the interpreter."""
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def helper(launch: Launch, state: interpreter.ForkserverState) -> launcher.Helper:
    """Return the helper for ``launcher.serve``, in a fork of this interpreter.

    Args:
        launch: Starts the container; its last argument is called in place of the command.

    Raises:
        Become: In a container, on the way to its program.
    """

    def start(request: dict[str, Any], fds: dict[str, int], writer: int) -> NoReturn:
        with container.stage(writer, "sandbox"):
            plan = cast(ForkPlan, dict(request["fork_plan"]))
            process = ContainerSpec.from_dict(request["spec"]).process

        def become() -> NoReturn:
            # The request's descriptors are closed by now; the program may get the same numbers.
            with _no_exit():
                last = torchrun.prepare(plan, state)
                interpreter.run(plan, process.environment, state, last=last)

        launch(request, fds, writer, become)

    return start


def _stay(status: int) -> None:
    """Replace ``os._exit``."""


@contextlib.contextmanager
def _no_exit() -> Iterator[None]:
    """Let ``Become`` through the ``finally: os._exit`` with which every child of ``container`` ends."""
    try:
        yield
    except Become:
        _real_exit.append(os._exit)
        os._exit = _stay  # type: ignore[assignment]
        raise
    except BaseException:
        traceback.print_exc()
        raise


_real_exit: list[Callable[[int], NoReturn]] = []


def main(arguments: list[str] | None = None, *, launch: Launch = launcher.launch) -> None:
    parser = argparse.ArgumentParser(description="Fork containers from a Python that has imported torch.")
    parser.add_argument("--fd", type=int, default=os.environ.get("FD_0"), help="the runtime's socket (FD_0)")
    parser.add_argument("--module", action="append", help="import this, in place of the default list")
    settings = parser.parse_args(arguments)
    sock = socket.socket(fileno=int(settings.fd))
    sock.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is not meant for the forkserver
    started = time.monotonic()
    state = interpreter.ForkserverState(_MODULES_AT_START)
    loaded = load(settings.module or list(MODULES), state)
    native.use_huge_pages()
    if sys.getfilesystemencoding() != "utf-8" or len(os.listdir("/proc/self/task")) != 1:
        sys.exit("the forkserver needs a UTF-8 locale, and modules that start no threads")
    messages.send(sock, {"ready": round(time.monotonic() - started, 3), "imports": loaded}, [])
    try:
        launcher.serve(sock, helper(launch, state))
    except ConnectionError:
        return
    except Become:
        os._exit = _real_exit.pop()  # type: ignore[assignment]
        raise


if __name__ == "__main__":
    main()
