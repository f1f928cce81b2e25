"""PID 1 of the runtime's namespaces: starts, signals and reaps every process in them, on request.

A program of its own, run with ``python -S`` and the standard library alone, because a small parent forks
quickly and because it must survive everything else: a kubelet that restarts finds here which containers still
run, their output pipes with what they wrote meanwhile, the journals of their logs, and how the others ended.
It decides nothing. It ends with the supervisor, and every process in its namespaces ends with it.

Requests arrive on a Unix socket, one message each (``client.py``); the ``_do_…`` methods carry them out.
"""

import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

# In place of this folder, whose modules would hide the standard library's.
sys.path.pop(0)
sys.path.insert(0, os.path.abspath(__file__).removesuffix("/localkube/runtime/init.py"))

from localkube.runtime import container, messages, namespaces, plain
from localkube.runtime.container import ContainerStartError, StartedProcess
from localkube.runtime.container_spec import ProcessSpec, StartRequest
from localkube.runtime.forkserver import ForkserverClient
from localkube.runtime.messages import close_all
from localkube.runtime.netlink import Netlink
from localkube.runtime.pod_network import make_network, make_pod, move_pod, plug_node, socket_in, unplug_node
from localkube.runtime.processes import ProcessEntry, kill_session, open_streams, start_host_process


@dataclass(frozen=True)
class Reply:
    """An answer, with descriptors to send beside it, and those to close once it is sent."""

    message: dict[str, Any] = field(default_factory=dict)
    fds: Sequence[int] = ()
    close: Sequence[int] = ()


class RuntimeInit:
    """Carries out requests, one after the other.

    Args:
        settings: ``mode``, ``scratch``, and those of ``enter_namespaces`` and ``make_network``.
    """

    def __init__(self, settings: dict[str, Any], listener: socket.socket) -> None:
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._clients: list[socket.socket] = []
        self._client: socket.socket | None = None
        self._entries: dict[str, ProcessEntry] = {}
        self._by_pid: dict[int, ProcessEntry] = {}
        self._pods: dict[str, dict[str, int]] = {}
        self._addresses: dict[str, str] = {}
        self._unplugged: dict[str, str] = {}
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._forkserver = ForkserverClient(self._selector)
        self._plain = settings["mode"] == "plain"
        self._netlink = None if self._plain else Netlink()
        self._gate = None if self._plain else make_network(self._netlink, settings)

    def run(self) -> NoReturn:
        wake_reader, wake_writer = socket.socketpair()
        wake_reader.setblocking(False)
        wake_writer.setblocking(False)
        signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(wake_reader, selectors.EVENT_READ, lambda: wake_reader.recv(4096))
        while True:
            for key, _ in self._selector.select():
                key.data()
            self._reap()

    # Connections.

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._clients.append(client)
        self._selector.register(client, selectors.EVENT_READ, lambda: self._serve(client))

    def _drop(self, client: socket.socket) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client)
            client.close()
            for entry in self._entries.values():
                if entry.client is client:
                    kill_session(entry.pid)

    def _serve(self, client: socket.socket) -> None:
        try:
            received = messages.receive(client)
        except ConnectionError:
            received = None
        if received is None:
            self._drop(client)
            return
        request, fds = received
        close_all(fds)
        self._client = client
        try:
            reply = getattr(self, "_do_" + request["op"])(request)
        except ContainerStartError as error:
            reply = Reply({"error": error.message, "stage": error.stage})
        except (OSError, KeyError) as error:
            reply = Reply({"error": f"{type(error).__name__}: {error}", "stage": "sandbox"})
        self._send(client, {"answer": request["number"], **reply.message}, reply.fds)
        close_all(reply.close)

    def _send(self, client: socket.socket, message: dict, fds: Sequence[int] = ()) -> None:
        try:
            messages.send(client, message, list(fds))
        except ConnectionError:
            self._drop(client)

    # Networks.

    def _do_open_gateway(self, request: dict) -> Reply:
        """Hand out the way out of the network: the gateway that serves it runs outside."""
        return Reply(fds=[self._gate])

    def _do_socket(self, request: dict) -> Reply:
        """Make a TCP socket of the runtime's network, or of a pod's, for a client outside of it.

        The answer's ``loopback`` is the address at which the pod's localhost is reached by it.
        """
        family, loopback = (socket.AF_INET6, "::1") if request.get("v6") else (socket.AF_INET, "127.0.0.1")
        if self._plain and "pod" in request:
            loopback = self._addresses[request["pod"]]
        pod = {} if self._plain else self._pods.get(request.get("pod"), {})
        made = socket_in(pod, family) if pod else socket.socket(family)
        descriptor = made.detach()
        return Reply({"loopback": loopback}, [descriptor], [descriptor])

    def _do_run_sandbox(self, request: dict) -> Reply:
        """Create the namespaces that the containers of a pod share."""
        pod, address = request["pod"], request["address"]
        if pod not in self._pods:
            self._pods[pod] = {} if self._plain else make_pod(self._netlink, request)
            self._addresses[pod] = address
            for prefix, bridge in self._unplugged.items():
                if address.startswith(prefix):
                    move_pod(self._netlink, address, bridge)
        return Reply()

    def _do_remove_sandbox(self, request: dict) -> Reply:
        """Forget a pod's namespaces; the kernel frees them with their last process."""
        self._addresses.pop(request["pod"], None)
        pod = self._pods.pop(request["pod"], {})
        namespaces.end_shared_processes(pod)
        close_all(pod.values())
        return Reply()

    def _do_unplug(self, request: dict) -> Reply:
        """Take a node off the network, and its pods, whose addresses begin with ``prefix``."""
        if self._plain:
            plain.unplug_node(request)
        else:
            unplug_node(self._netlink, request, self._pods_of(request["prefix"]))
            self._unplugged[request["prefix"]] = request["bridge"]
        return Reply()

    def _do_plug(self, request: dict) -> Reply:
        """Bring a node back to the network."""
        if self._unplugged.pop(request["prefix"], None):
            plug_node(self._netlink, request, self._pods_of(request["prefix"]))
        return Reply()

    def _pods_of(self, prefix: str) -> list[str]:
        return [address for address in self._addresses.values() if address.startswith(prefix)]

    # Starts.

    def _do_component(self, request: dict) -> Reply:
        """Start a program of the cluster itself."""
        pid = start_host_process(request, null=self._null, plain=self._plain)
        return self._started(ProcessEntry(request["id"], "component", pid, time.time()))

    def _do_forkserver(self, request: dict) -> Reply:
        with self._forkserver.connect() as theirs:
            pid = start_host_process(request, null=self._null, plain=self._plain, descriptor=theirs.fileno())
        return self._started(ProcessEntry(request["id"], "component", pid, time.time()))

    def _do_run(self, request: dict) -> Reply:
        """Start a container (``StartRequest``); the answer carries our ends of its streams."""
        if request["id"] in self._entries:
            return self._do_attach(request)
        start, pod = StartRequest.from_dict(request), self._pods[request["pod"]]
        terminal = start.spec.process.terminal
        with open_streams(terminal=terminal, stdin=start.stdin, null=self._null) as (ours, theirs):
            started, forked = self._start(request, start, theirs | pod)
        if started.terminal is None:
            ours["journal"] = os.memfd_create("journal", os.MFD_CLOEXEC)
        else:
            ours = {"tty": started.terminal}
        entry = ProcessEntry(
            request["id"], "container", started.pid, time.time(), ours, start.spec, start.plain
        )
        if "pause" in pod:
            entry.mount_namespace = namespaces.mount_namespace(started.pid)
        return self._started(entry, {"forked": forked}, list(ours.values()))

    def _start(self, request: dict, start: StartRequest, fds: dict[str, int]) -> tuple[StartedProcess, bool]:
        scratch = self._settings["scratch"]
        if start.fork_plan and self._forkserver.ready and not start.spec.process.terminal:
            started = self._forkserver.start(request | {"scratch": scratch, "init": os.getpid()}, fds)
            if started is not None:
                return started, True
        if start.plain:
            return plain.start(start.spec, fds, pod=start.plain, init=os.getpid()), False
        return container.start(start.spec, fds, scratch=scratch), False

    def _do_exec(self, request: dict) -> Reply:
        """Start a command in a container that runs; its streams go to the client alone.

        ``process`` is a ``ProcessSpec`` whose environment is added to the container's.
        """
        parent = self._entries[request["container"]]
        if parent.status is not None:
            raise ContainerStartError("sandbox", "the container has ended")
        process = ProcessSpec.from_dict(request["process"])
        env = (*parent.spec.process.env, *process.env)
        spec = replace(
            parent.spec,
            process=replace(parent.spec.process, args=process.args, terminal=process.terminal, env=env),
        )
        with open_streams(terminal=process.terminal, stdin=request["stdin"], null=self._null) as (
            ours,
            theirs,
        ):
            if parent.plain:
                started = plain.start(spec, theirs, pod=parent.plain, init=os.getpid(), first=False)
            else:
                started = container.execute(spec, theirs, container=parent.pid)
        if started.terminal is not None:
            ours = {"tty": started.terminal}
        fds = list(ours.values())
        entry = ProcessEntry(
            request["id"], "exec", started.pid, time.time(), client=self._client, container=parent.identity
        )
        return replace(self._started(entry, {"streams": list(ours)}, fds), close=fds)

    def _started(
        self, entry: ProcessEntry, more: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> Reply:
        self._entries[entry.identity] = entry
        self._by_pid[entry.pid] = entry
        return Reply(entry.describe() | (more or {}), fds)

    # Processes that were started.

    def _do_attach(self, request: dict) -> Reply:
        """Describe a process, and hand out our ends of its streams."""
        entry = self._entries[request["id"]]
        return Reply(entry.describe(), list(entry.pipes.values()))

    def _do_kill(self, request: dict) -> Reply:
        entry = self._entries.get(request["id"])
        running = entry is not None and entry.status is None
        if running and entry.owner == "exec":
            kill_session(entry.pid, request["signal"])
        elif running:
            os.kill(entry.pid, request["signal"])
        return Reply({"running": running})

    def _do_close_stdin(self, request: dict) -> Reply:
        """Close our end of a container's stdin: it reads the end once the kubelet has closed its own."""
        entry = self._entries[request["id"]]
        if "stdin" in entry.pipes:
            os.close(entry.pipes.pop("stdin"))
        return Reply()

    def _do_list(self, request: dict) -> Reply:
        entries = [entry.describe() for entry in self._entries.values()]
        return Reply({"entries": entries, "pods": self._addresses, "forkserver": self._forkserver.ready})

    def _do_delete(self, request: dict) -> Reply:
        """Drop a process whose end was recorded elsewhere, or will be asked for by nobody."""
        self._delete(request["id"])
        return Reply()

    def _do_delete_pod(self, request: dict) -> Reply:
        """Drop all containers of a pod: it is gone, nobody will ask."""
        for identity in [key for key in self._entries if key.startswith(request["pod"] + ".")]:
            self._delete(identity)
        return Reply()

    def _delete(self, identity: str) -> None:
        if entry := self._entries.get(identity):
            entry.forgotten = True
            if entry.status is not None:
                self._drop_entry(entry)

    def _drop_entry(self, entry: ProcessEntry) -> None:
        self._entries.pop(entry.identity, None)
        close_all(entry.pipes.values())

    # Ends.

    def _reap(self) -> None:
        reaped = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            reaped = True
            if entry := self._by_pid.pop(pid, None):
                entry.status, entry.ended = status, time.time()
                self._exited(entry)
        if reaped and self._plain:
            plain.end_strays(self._by_pid)

    def _exited(self, entry: ProcessEntry) -> None:
        if entry.mount_namespace:
            namespaces.kill_in_mount_namespace(entry.mount_namespace)
        if entry.owner == "exec":
            del self._entries[entry.identity]
        for client in list(self._clients):
            self._send(client, {"event": "exit", **entry.describe()})
        if entry.forgotten:
            self._drop_entry(entry)
        if self._plain:
            # The commands that run in it; a PID namespace ends them by itself.
            for other in self._entries.values():
                if other.container == entry.identity and other.status is None:
                    kill_session(other.pid)


def main() -> NoReturn:
    settings = json.loads(sys.argv[1])
    listener = socket.socket(fileno=settings["listener"])
    os.set_inheritable(listener.fileno(), False)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if settings["mode"] == "plain":
        plain.enter(settings)
    else:
        namespaces.enter_namespaces(settings)
    # What is here by now stays, and a collection in a fork would copy the pages that it shares.
    gc.freeze()
    RuntimeInit(settings, listener).run()


if __name__ == "__main__":
    main()
