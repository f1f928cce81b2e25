"""Launch a trainer, and restart it when it dies: replaces torchrun for trainers that use ``elastic.py``.

torchrun restarts *every* worker at each membership change. This launcher restarts only the dead one; the
others form a new group by themselves. It accepts torchrun's flags (with - or _) and variables:

    python elastic_launch.py --nnodes 1:4 --rdzv_backend c10d --rdzv_endpoint store:29400 --rdzv_id run-1 \\
        --max_restarts 3 digits_elastic.py --epochs 5
    PET_NNODES=1:4 PET_RDZV_ENDPOINT=store:29400 PET_RDZV_ID=run-1 python elastic_launch.py digits_elastic.py
    python elastic_launch.py digits_elastic.py --epochs 5      (a single worker)

torch is imported once, here, and the trainer is forked: a worker restarts within a fraction of a second. This
process must not compute anything, because threads do not survive a fork.

The launcher gives up on a worker that is killed by signals more than ``--max_restarts`` times within
``--restart_window`` seconds: an exercise may kill it often, but a crash loop ends. Errors of the trainer
(exit codes) are counted over the whole run, as in torchrun, because they recur.
"""

# ruff: noqa: E402
import gc

gc.disable()  # while torch is imported: collections would take a quarter of the time and free nothing

import argparse
import atexit
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # the first optimizer imports it, which takes as long as torch itself
import torch.distributed as dist
from elastic_rendezvous import BACKENDS, PORTS, RendezvousSettings
from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    _parse_rendezvous_config,
    parse_rendezvous_endpoint,
)
from torch.distributed.elastic.utils import macros

gc.enable()

DO_NOT_RESTART = 78  # EX_CONFIG: elastic.py exits with it if a restart would fail in the same way
LEFT = 128 + signal.SIGTERM
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags, and torchrun's variables for missing flags."""
    parser = argparse.ArgumentParser(description="Start a trainer's workers, and restart those that die.")
    switch = {
        "nnodes": ("1", "MIN:MAX nodes, or one number"),
        "nproc_per_node": ("1", "workers on this node: a number, gpu, cpu or auto"),
        "rdzv_backend": ("c10d", "c10d, etcd or etcd-v2 (the same as etcd: its v2 API)"),
        "rdzv_endpoint": ("", "HOST:PORT of the store"),
        "rdzv_id": ("none", "name of the run, different for each launch"),
        "rdzv_conf": ("", "NAME=VALUE,…: timeouts"),
        "max_restarts": ("3", "how often a dead worker is restarted"),
        "restart_window": ("60", "seconds within which deaths by signals are counted together"),
    }
    for name, (default, text) in switch.items():
        spellings = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
        value = os.environ.get(f"PET_{name.upper()}", default)
        parser.add_argument(*spellings, dest=name, default=value, help=text)
    standalone = os.environ.get("PET_STANDALONE", "0") not in ("", "0", "false", "False")
    parser.add_argument(
        "--standalone", action="store_true", default=standalone, help="rendezvous on this machine"
    )
    parser.add_argument("trainer", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    try:
        _check(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def _check(options: argparse.Namespace) -> None:
    low, _, high = options.nnodes.partition(":")
    options.min_nodes, options.max_nodes = _number("--nnodes", low), _number("--nnodes", high or low)
    if options.min_nodes > options.max_nodes:
        raise ValueError(
            f"--nnodes {options.nnodes}: the smallest number of nodes ({low}) exceeds the largest ({high}); "
            "use MIN:MAX"
        )
    if options.rdzv_backend not in BACKENDS:
        raise ValueError(f"--rdzv_backend {options.rdzv_backend}: choose one of {', '.join(BACKENDS)}")
    options.max_restarts = _number("--max_restarts", options.max_restarts, minimum=0)
    options.restart_window = _number("--restart_window", options.restart_window)
    options.nproc_per_node = _processes(options.nproc_per_node)
    options.rdzv_conf = _parse_rendezvous_config(options.rdzv_conf)
    if options.max_nodes > 1 and not (options.rdzv_endpoint or options.standalone):
        raise ValueError(
            f"--nnodes {options.nnodes}: several nodes need a store; pass --rdzv_endpoint HOST:PORT "
            "(or PET_RDZV_ENDPOINT)"
        )
    if not Path(options.trainer).is_file():
        raise ValueError(f"{options.trainer}: no such file; the trainer's path comes after the flags")


def _number(name: str, text: str, *, minimum: int = 1) -> int:
    if not text.isdigit() or int(text) < minimum:
        raise ValueError(f"{name} {text}: must be an integer of at least {minimum}")
    return int(text)


def _processes(text: str) -> int:
    """Parse a number of processes; gpu, cpu and auto mean the same as in torchrun."""
    # Counting GPUs must not initialise CUDA, or forked workers could not use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    gpus = torch.cuda.device_count() if text in ("gpu", "auto") else 0
    if text == "gpu" and not gpus:
        raise ValueError("--nproc_per_node gpu: this machine has no GPU")
    if text in ("gpu", "auto", "cpu"):
        return gpus or os.cpu_count() or 1
    return _number("--nproc_per_node", text)


def describe(options: argparse.Namespace) -> RendezvousSettings | None:
    """Return the rendezvous settings; None for a single worker."""
    count = options.nproc_per_node
    if not options.rdzv_endpoint and not options.standalone and count == 1:
        return None
    endpoint, name = options.rdzv_endpoint, options.rdzv_id
    if not endpoint:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    nodes = options.min_nodes * count, options.max_nodes * count
    return RendezvousSettings(name, options.rdzv_backend, endpoint, *nodes, options.rdzv_conf)


@dataclass(frozen=True)
class Child:
    """A worker's process: its number on this node, how often it was restarted, and the PID it replaces."""

    local_rank: int
    restarts: int = 0
    errors: int = 0
    replaces: int = 0


class Launcher:
    """Keep this node's workers running.

    Args:
        options: The result of ``parse``.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._settings = options, describe(options)
        self._children: dict[int, Child] = {}
        self._deaths: dict[int, deque[float]] = {}
        self._codes: list[int] = []
        self._stopping = False

    def supervise(self) -> Child | int:
        """Supervise the workers; return the exit code, or, in a worker's process, its `Child`."""
        if self._settings and BACKENDS[self._settings.backend] == "c10d":
            _host_local_store(self._settings)
        for number in FORWARDED:
            signal.signal(number, self._forward)
        gc.freeze()  # keep loaded modules on shared pages
        for local_rank in range(self._options.nproc_per_node):
            if self._fork(Child(local_rank)):
                return self._me
        while self._children:
            pid, status = os.waitpid(-1, 0)
            child = self._children.pop(pid, None)
            if child is not None:  # the store, or an orphan reparented to PID 1
                next_child = self._next_child(child, pid, os.waitstatus_to_exitcode(status))
                if next_child and self._fork(next_child):
                    return self._me
        return next((code for code in self._codes if code), 0)

    def _fork(self, child: Child) -> bool:
        """Start a worker; True in its own process."""
        sys.stdout.flush()
        parent = os.getpid()
        # Block signals between the fork and the moment when the child no longer forwards them.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        pid = os.fork()
        if pid:
            self._children[pid] = child
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
            return False
        _exit_with_parent(parent)
        for number in FORWARDED:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        self._me = child
        return True

    def _forward(self, number: int, frame: object) -> None:
        self._stopping = True
        for pid in list(self._children):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _next_child(self, child: Child, pid: int, code: int) -> Child | None:
        """Return the worker to start in place of one that ended, or None."""
        if code in (0, LEFT, DO_NOT_RESTART) or self._stopping:
            self._codes.append(code if code >= 0 else 128 - code)
            if code == DO_NOT_RESTART:
                self._forward(signal.SIGTERM, None)
            return None
        cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        errors = child.errors + (code > 0)
        child = replace(child, restarts=child.restarts + 1, errors=errors, replaces=pid)
        recent = self._recent_kills(child.local_rank, code)
        options = self._options
        if child.errors > options.max_restarts or recent > options.max_restarts:
            when = f" within {options.restart_window} s" if recent > options.max_restarts else ""
            _log(
                f"giving up: worker {child.local_rank} (PID {pid}) {cause}, and had been restarted "
                f"{options.max_restarts} times{when} (--max_restarts, PET_MAX_RESTARTS)"
                + ("" if code < 0 else "; see its error above")
            )
            self._codes.append(code if code > 0 else 128 - code)
            self._forward(signal.SIGTERM, None)
            return None
        _log(f"worker {child.local_rank} (PID {pid}) {cause}; restarting it (restart {child.restarts})")
        return child

    def _recent_kills(self, local_rank: int, code: int) -> int:
        kills, now = self._deaths.setdefault(local_rank, deque()), time.monotonic()
        if code < 0:
            kills.append(now)
        while kills and kills[0] < now - self._options.restart_window:
            kills.popleft()
        return len(kills)

    def run_trainer(self, child: Child) -> None:
        """Run the trainer in this process, as ``python trainer.py`` would."""
        options = self._options
        os.environ |= {
            "LOCAL_RANK": str(child.local_rank),
            "LOCAL_WORLD_SIZE": str(options.nproc_per_node),
            "TORCHELASTIC_RESTART_COUNT": str(child.restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
            "TORCHELASTIC_RUN_ID": options.rdzv_id,
            "ELASTIC_REPLACES": str(child.replaces),
        }
        if self._settings:
            os.environ["ELASTIC_RENDEZVOUS"] = self._settings.to_json()
        if options.nproc_per_node > 1 and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # as torchrun does: the workers share the cores
        # As torchrun does, which replaces ${local_rank} and $$.
        sys.argv = [options.trainer, *macros.substitute(options.arguments, str(child.local_rank))]
        sys.path.insert(0, str(Path(options.trainer).resolve().parent))  # keep this file's own folder as well
        runpy.run_path(options.trainer, run_name="__main__")


def _host_local_store(settings: RendezvousSettings) -> None:
    """Host the c10d store if its endpoint is this machine, in a process independent of the workers.

    The Training Operator's default endpoint is the first worker, for example.
    """
    host, port = parse_rendezvous_endpoint(settings.endpoint, PORTS["c10d"])
    if settings.conf.get("is_host", "").lower() in ("false", "0") or not _matches_machine_hostname(host):
        return
    parent = os.getpid()
    if os.fork():
        return
    _exit_with_parent(parent)
    _host_store(port)


def _host_store(port: int) -> NoReturn:
    try:
        limit = timedelta(seconds=60)
        store = dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False, timeout=limit)
    except RuntimeError:  # another node on this machine already hosts it
        os._exit(0)
    while store:
        signal.pause()
    os._exit(0)


def _exit_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent (Linux)."""
    with suppress(AttributeError, OSError):
        CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _log(text: str) -> None:
    print(f"elastic_launch: {text}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run workers until all have ended; also the entry point of each worker."""
    launcher = Launcher(parse(argv))
    outcome = launcher.supervise()
    if isinstance(outcome, Child):
        launcher.run_trainer(outcome)
        return 0
    return outcome


def exit_fast(function: Callable[[], int]) -> NoReturn:
    """Exit like the interpreter, but without freeing the imported modules.

    With torch that takes seconds, which would delay the end of the pod or the restart of its worker.
    """
    try:
        code: object = function()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - printed as by the interpreter
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # waits for non-daemon threads, such as one that writes a checkpoint
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_fast(main)
