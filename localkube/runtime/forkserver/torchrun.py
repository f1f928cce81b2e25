"""Fork torchrun's workers as well: torchrun itself would start each as a new interpreter.

Before torchrun's own code runs, its process forks a copy of itself that only waits (a zygote, as Android
calls it). For a worker, torchrun's ``Popen`` requests a fork from it. The worker's parent ends at once, and
the worker becomes torchrun's own child: PID 1 of a container adopts orphans. Signals, waiting and exit codes
are then as with a real ``Popen``; where the request fails, a real one is used.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from localkube.runtime import messages, syscalls
from localkube.runtime.forkserver import interpreter, native
from localkube.runtime.forkserver.command import ForkPlan, is_torchrun, plan


class ForkedWorker(subprocess.Popen[bytes]):
    """A worker that was forked, not executed; Popen's own code waits for it and signals it."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args, self.pid, self.returncode = args, pid, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._communication_started, self._input = True, False, None
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


def prepare(container: ForkPlan, state: interpreter.ForkserverState) -> Callable[[], None]:
    """Fork a zygote if the container runs torchrun; return a function to call before torchrun runs.

    Raises:
        native.Become: In a worker, on the way to its program.
    """
    if not is_torchrun(container):
        return lambda: None
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        parent_end.close()
        _run_zygote(child_end, parent, state)
    child_end.close()
    return lambda: _replace_popen(parent_end, container["executable"])


def _run_zygote(sock: socket.socket, parent: int, state: interpreter.ForkserverState) -> None:
    syscalls.die_with_parent()
    if os.getppid() != parent:
        os._exit(0)
    os.setsid()
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.closerange(3, sock.fileno())
    os.closerange(sock.fileno() + 1, 1 << 20)
    while received := messages.receive(sock):
        request, descriptors = received
        if request["last"]:
            messages.send(sock, {"pid": os.getpid()}, [])
            syscalls.die_with_parent(0)
            _become_worker(request, descriptors, sock, state)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        intermediate = os.fork()
        if intermediate == 0:
            _fork_worker(request, descriptors, sock, writer, state)
        os.close(writer)
        os.waitpid(intermediate, 0)
        answer = os.read(reader, 32)
        for descriptor in (reader, *descriptors):
            os.close(descriptor)
        messages.send(sock, {"pid": int(answer or 0)}, [])
    os._exit(0)


def _fork_worker(
    request: dict[str, Any], descriptors: list[int], sock: socket.socket, writer: int, state: Any
) -> None:
    """Fork the worker and end, which makes it torchrun's child."""
    intermediate = os.getpid()
    worker = os.fork()
    if worker:
        os.write(writer, str(worker).encode())
        os._exit(0)
    while os.getppid() == intermediate:
        os.sched_yield()
    os.setsid()
    _become_worker(request, descriptors, sock, state)


def _become_worker(
    request: dict[str, Any], descriptors: list[int], sock: socket.socket, state: Any
) -> NoReturn:
    sock.detach()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 20)
    interpreter.run(request["plan"], request["env"], state, last=lambda: None)


def _replace_popen(sock: socket.socket, python: str) -> None:
    """Let torchrun's subprocess handler request its workers from the zygote."""
    with suppress(ImportError):
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

        if os.getpid() != 1:
            syscalls.adopt_orphans()
        subprocess_handler.Popen = _Popen(sock, python)  # type: ignore[misc, assignment]
        sys.exit = native.exit_at_once


class _Popen:
    """Replaces ``Popen`` in torchrun's subprocess handler."""

    def __init__(self, sock: socket.socket, python: str) -> None:
        self._sock, self._python, self._lock = sock, python, threading.Lock()

    def __call__(
        self, args: Sequence[str], env: dict[str, str], stdout: Any, stderr: Any, **options: Any
    ) -> Any:
        argv = [os.fspath(argument) for argument in args]
        # A preloaded library of this process is also loaded in its forks; another one is not.
        same = os.environ.get("LD_PRELOAD") == env.get("LD_PRELOAD")
        checked_env = {name: value for name, value in env.items() if name != "LD_PRELOAD" or not same}
        worker = plan(argv, checked_env, python=self._python, path=env.get("PATH", ""))
        if worker is not None and options == {"start_new_session": True}:
            pid = self._request(worker, env, [0, _number(stdout, 1), _number(stderr, 2)])
            if pid:
                return ForkedWorker(args, pid)
        return subprocess.Popen(args=args, env=env, stdout=stdout, stderr=stderr, **options)

    def _request(self, worker: ForkPlan, env: dict[str, str], descriptors: list[int]) -> int:
        umask = os.umask(0)
        os.umask(umask)
        request = {"plan": worker, "env": env, "cwd": os.getcwd(), "umask": umask, "last": _is_last(env)}
        with self._lock:
            try:
                messages.send(self._sock, request, descriptors)
                received = messages.receive(self._sock)
            except OSError:
                return 0
        return received[0]["pid"] if received else 0


def _is_last(env: Mapping[str, str]) -> bool:
    """Check that torchrun starts no other worker: one on this node, no restarts, a fixed number of nodes."""
    nodes = " ".join([*sys.argv, os.environ.get("PET_NNODES", "")])
    counts = env.get("LOCAL_WORLD_SIZE"), env.get("TORCHELASTIC_MAX_RESTARTS")
    return counts == ("1", "0") and ":" not in nodes


def _number(stream: Any, default: int) -> int:
    return default if stream is None else stream if isinstance(stream, int) else stream.fileno()
