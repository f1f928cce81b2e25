"""PID 1 of the runtime's namespaces: starts, signals and reaps every process in them, on request.

A program of its own, run with ``python -S`` and the standard library alone, because a small parent forks
quickly and because it must survive everything else: a restarted kubelet finds here the running containers,
their output pipes with what they wrote meanwhile, the journals of their logs, and the others' exit statuses.
It makes no decisions. It ends with the supervisor, and every process in its namespaces ends with it.

Requests arrive on a Unix socket, one message each (``client.py``); the ``_do_…`` methods carry them out. It
never blocks: processes that enter a pod are forked elsewhere (``launches.py``), and the request is answered
when they have started.
"""

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

# In place of this folder, whose modules would hide the standard library's.
sys.path.pop(0)
sys.path.insert(0, os.path.abspath(__file__).removesuffix("/localkube/runtime/init.py"))

from localkube.runtime import namespaces, plain
from localkube.runtime.connections import Connections, Reply
from localkube.runtime.container import ContainerStartError, has_own_processes
from localkube.runtime.container_spec import ProcessSpec, StartRequest
from localkube.runtime.launches import DEADLINE_SECONDS, Launch, Launches, ZygoteClient, start_launcher
from localkube.runtime.links.groups import NodeLinks
from localkube.runtime.links.netlink import Netlink
from localkube.runtime.messages import close_all
from localkube.runtime.pod_network import (
    BRIDGE,
    NETLINK_NETFILTER,
    make_network,
    make_node,
    make_pod,
    move_pod,
    open_gate,
    plug_node,
    socket_in,
    unplug_node,
)
from localkube.runtime.processes import ProcessEntry, kill_session, open_streams, start_host_process


class RuntimeInit:
    """Carries out requests.

    Args:
        settings: ``mode``, ``scratch``, ``launch_seconds`` if starts have another deadline, and those of
            ``enter_namespaces`` and ``make_network``.
    """

    def __init__(self, settings: dict[str, Any], listener: socket.socket) -> None:
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(self._selector, listener, serve=self._serve, dropped=self._dropped)
        self._requester: tuple[socket.socket, int]  # of the request that is served
        self._entries: dict[str, ProcessEntry] = {}
        self._by_pid: dict[int, ProcessEntry] = {}
        self._pods: dict[str, dict[str, int]] = {}
        self._addresses: dict[str, str] = {}
        self._unplugged: dict[str, str] = {}
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._forkserver, self._forkserver_pid = ZygoteClient(self._selector), 0
        self._launcher, self._launcher_pid = ZygoteClient(self._selector), 0
        self._launches = Launches(
            self._selector,
            answer=self._launched,
            end_strays=lambda: plain.end_strays(self._known_pids),
            seconds=settings.get("launch_seconds", DEADLINE_SECONDS),
        )
        self._plain = settings["mode"] == "plain"
        self._nodes: dict[str, int] = {}
        if not self._plain:
            self._netlink = Netlink()
            make_network(self._netlink, settings)
            addresses = settings["node_addresses"]
            self._nodes = {address: make_node(self._netlink, settings, address) for address in addresses}
            self._links = NodeLinks(self._netlink)

    def run(self) -> NoReturn:
        wake_reader, wake_writer = socket.socketpair()
        wake_reader.setblocking(False)
        wake_writer.setblocking(False)
        signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wake_reader, selectors.EVENT_READ, lambda: wake_reader.recv(4096))
        self._launcher_pid = start_launcher(self._launcher)
        while True:
            for key, _ in self._selector.select(self._launches.next_deadline):
                # Unless an earlier callback of this round has closed it.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._reap()
            self._launches.settle()

    def _serve(self, client: socket.socket, request: dict[str, Any]) -> None:
        self._requester = client, request["number"]
        try:
            reply = getattr(self, "_do_" + request["op"])(request)
        except ContainerStartError as error:
            reply = _refusal(error)
        except (OSError, KeyError) as error:
            reply = Reply({"error": f"{type(error).__name__}: {error}", "stage": "sandbox"})
        if reply is not None:
            self._connections.answer([self._requester], reply)

    def _dropped(self, client: socket.socket) -> None:
        """Kill the commands that this client has requested."""
        for entry in self._entries.values():
            if entry.client is client:
                kill_session(entry.pid)
        for launch in self._launches.pending(lambda launch: bool(launch.container)):
            if launch.waiting[0][0] is client:
                self._launches.give_up(launch, "its client has disconnected")

    # Networks.

    def _do_open_gateway(self, request: dict[str, Any]) -> Reply:
        """Open the socket of the network's egress for the gateway, which runs outside."""
        gate = open_gate()
        return Reply(fds=[gate], close=[gate])

    def _do_socket(self, request: dict[str, Any]) -> Reply:
        """Create a socket in the network of the runtime, a pod or a node, for a process outside of it.

        It is a TCP socket; with ``udp`` a UDP socket, with ``netfilter`` a netlink socket for nftables rules.
        ``node`` is a node's address. The answer's ``loopback`` is the address of the pod's localhost. A pod
        without a sandbox is refused: the socket would reach the loopback of the cluster itself.
        """
        family, loopback = (socket.AF_INET6, "::1") if request.get("v6") else (socket.AF_INET, "127.0.0.1")
        kind = socket.SOCK_DGRAM if request.get("udp") else socket.SOCK_STREAM
        if "pod" in request and request["pod"] not in self._pods:
            raise ContainerStartError("sandbox", "pod not found")
        protocol = 0
        if request.get("netfilter"):
            family, kind, protocol = socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER
        namespace = self._nodes.get(request.get("node", ""))
        if "pod" in request:
            namespace = self._pods[request["pod"]].get("net")
            loopback = self._addresses[request["pod"]] if self._plain else loopback
        if namespace is None and request.get("netfilter"):  # they would be the machine's rules
            raise ContainerStartError("sandbox", "there is no network to make rules for")
        if namespace is None:
            sock = socket.socket(family, kind, protocol)
        else:
            sock = socket_in(namespace, family, kind, protocol)
        descriptor = sock.detach()
        return Reply({"loopback": loopback}, [descriptor], [descriptor])

    def _do_run_sandbox(self, request: dict[str, Any]) -> Reply:
        """Create the namespaces that the containers of a pod share."""
        pod, address = request["pod"], request["address"]
        if pod not in self._pods:
            node = self._nodes.get(address, -1)
            self._pods[pod] = {} if self._plain else make_pod(self._netlink, request, node=node)
            self._addresses[pod] = address
            if not self._plain and (bridge := self._bridge(address)) != BRIDGE:
                move_pod(self._netlink, address, bridge)
        return Reply()

    def _do_remove_sandbox(self, request: dict[str, Any]) -> Reply:
        """Forget a pod's namespaces; the kernel frees them with their last process."""
        self._addresses.pop(request["pod"], None)
        self._give_up(request["pod"])
        pod = self._pods.pop(request["pod"], {})
        namespaces.end_shared_processes(pod)
        close_all(pod.values())
        return Reply()

    def _do_unplug(self, request: dict[str, Any]) -> Reply:
        """Disconnect a node and its pods, whose addresses begin with ``prefix``, from the network."""
        if self._plain:
            plain.unplug_node(request)
        else:
            unplug_node(self._netlink, request, self._pods_of(request["prefix"]))
            for address in (request["prefix"], request["address"]):
                self._unplugged[address] = request["bridge"]
        return Reply()

    def _do_plug(self, request: dict[str, Any]) -> Reply:
        """Reconnect a node and its pods to the network."""
        self._unplugged.pop(request["address"], None)
        if self._unplugged.pop(request["prefix"], None):
            bridge = self._links.bridge(request["address"])
            plug_node(self._netlink, request, self._pods_of(request["prefix"]), bridge)
        return Reply()

    def _do_links(self, request: dict[str, Any]) -> Reply:
        """Shape the links between groups of nodes (``NodeLinks.replace``)."""
        if self._plain:
            raise ContainerStartError("sandbox", "in plain mode all pods share the network of this machine")
        addresses = [*self._nodes, *self._addresses.values()]
        connected = [address for address in addresses if not self._unplugged_bridge(address)]
        self._links.replace(request["groups"], request["bridges"], connected)
        return Reply()

    def _do_link_counters(self, request: dict[str, Any]) -> Reply:
        return Reply({"counters": {} if self._plain else self._links.counters()})

    def _unplugged_bridge(self, address: str) -> str:
        prefix = address.rpartition(".")[0] + "."
        return self._unplugged.get(address) or self._unplugged.get(prefix, "")

    def _bridge(self, address: str) -> str:
        return self._unplugged_bridge(address) or self._links.bridge(address)

    def _pods_of(self, prefix: str) -> list[str]:
        return [address for address in self._addresses.values() if address.startswith(prefix)]

    # Starts.

    def _do_component(self, request: dict[str, Any]) -> Reply:
        """Start a program of the cluster itself."""
        pid = start_host_process(request, null=self._null, plain=self._plain)
        return self._started(ProcessEntry(request["id"], "component", pid, time.time()))

    def _do_forkserver(self, request: dict[str, Any]) -> Reply:
        with self._forkserver.connect() as child_end:
            pid = start_host_process(
                request, null=self._null, plain=self._plain, descriptor=child_end.fileno()
            )
        self._forkserver_pid = pid
        return self._started(ProcessEntry(request["id"], "component", pid, time.time()))

    def _do_run(self, request: dict[str, Any]) -> Reply | None:
        """Start a container (``StartRequest``); the answer carries our ends of its streams."""
        if request["id"] in self._entries:
            return self._do_attach(request)
        if launch_before := self._launches.find(request["id"]):
            launch_before.waiting.append(self._requester)
            return None
        start, pod = StartRequest.from_dict(request), self._pods[request["pod"]]
        namespaces_of_pod = {name: descriptor for name, descriptor in pod.items() if name != "pause"}
        terminal = start.spec.process.terminal
        zygotes = [self._launcher]
        if start.fork_plan and self._forkserver.runs and not terminal:
            zygotes.insert(0, self._forkserver)  # even while it still imports torch: sooner than a cold start
        with (
            open_streams(terminal=terminal, stdin=start.stdin, null=self._null) as (parent_ends, child_ends),
            self._process_namespace(start.target) as shared,
        ):
            launch = Launch(request["id"], "", [self._requester], parent_ends)
            own_processes = not self._plain and has_own_processes(start.spec)
            fds = child_ends | namespaces_of_pod | shared
            zygote = self._begin(launch, request, fds, zygotes, own_processes=own_processes)
        forked_from = self._forkserver_pid if zygote is self._forkserver else 0
        launch.started = lambda launch: self._container_started(launch, start, pod, forked_from=forked_from)
        return None

    def _begin(
        self,
        launch: Launch,
        request: dict[str, Any],
        fds: dict[str, int],
        zygotes: list[ZygoteClient],
        *,
        own_processes: bool = False,
    ) -> ZygoteClient:
        if not self._launcher_pid:
            self._launcher_pid = start_launcher(self._launcher)
        settings = {"scratch": self._settings["scratch"], "init": os.getpid()}
        return self._launches.begin(
            launch, request | settings, fds, zygotes=zygotes, own_processes=own_processes
        )

    def _container_started(
        self, launch: Launch, start: StartRequest, pod: dict[str, int], *, forked_from: int
    ) -> Reply:
        streams = launch.streams
        if launch.terminal is None:
            streams["journal"] = os.memfd_create("journal", os.MFD_CLOEXEC)
        else:
            streams = {"tty": launch.terminal}
        assert launch.pid is not None
        entry = ProcessEntry(
            launch.identity, "container", launch.pid, time.time(), streams, start.spec, start.plain
        )
        entry.forked_from = forked_from
        if "pid" in pod or start.target:
            entry.mount_namespace = namespaces.mount_namespace(launch.pid)
        return self._started(entry, fds=list(streams.values()))

    @contextlib.contextmanager
    def _process_namespace(self, container: str) -> Iterator[dict[str, int]]:
        """Open the PID namespace of a running container, for another one that joins it."""
        if not container or self._plain:
            yield {}
            return
        entry = self._entries.get(container)
        if entry is None or entry.status is not None:
            raise ContainerStartError("sandbox", f"the target container {container} has ended")
        descriptor = os.open(f"/proc/{entry.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield {"pid": descriptor}
        finally:
            os.close(descriptor)

    def _do_exec(self, request: dict[str, Any]) -> None:
        """Start a command in a running container; its streams go to the client alone.

        ``process`` is a ``ProcessSpec`` whose environment is added to the container's.
        """
        parent = self._entries[request["container"]]
        if parent.status is not None:
            raise ContainerStartError("sandbox", "the container has ended")
        assert parent.spec is not None
        process = ProcessSpec.from_dict(request["process"])
        env = (*parent.spec.process.env, *process.env)
        spec = replace(
            parent.spec,
            process=replace(parent.spec.process, args=process.args, terminal=process.terminal, env=env),
        )
        launch_request = {"spec": spec, "plain": parent.plain, "container": parent.pid}
        with (
            open_streams(terminal=process.terminal, stdin=request["stdin"], null=self._null) as (
                parent_ends,
                child_ends,
            ),
            contextlib.ExitStack() as sent,
        ):
            child_ends = dict(child_ends)
            if not parent.plain:
                child_ends["container"] = os.pidfd_open(parent.pid)
                sent.callback(os.close, child_ends["container"])
            launch = Launch(
                request["id"], parent.identity, [self._requester], parent_ends, self._command_started
            )
            self._begin(launch, launch_request, child_ends, [self._launcher])

    def _command_started(self, launch: Launch) -> Reply:
        streams = launch.streams if launch.terminal is None else {"tty": launch.terminal}
        client, _ = launch.waiting[0]
        assert launch.pid is not None
        entry = ProcessEntry(
            launch.identity, "exec", launch.pid, time.time(), client=client, container=launch.container
        )
        if self._plain and not self._runs(launch.container):
            kill_session(launch.pid)
        fds = list(streams.values())
        return replace(self._started(entry, {"streams": list(streams)}, fds), close=fds)

    def _runs(self, identity: str) -> bool:
        return identity in self._entries and self._entries[identity].status is None

    def _launched(self, launch: Launch, problem: ContainerStartError | None) -> None:
        """Answer the clients that wait for a start."""
        assert launch.started is not None
        reply = launch.started(launch) if problem is None else _refusal(problem)
        self._connections.answer(launch.waiting, reply)
        entry = self._entries.get(launch.identity)
        if entry and launch.exit and problem is None:
            del self._by_pid[entry.pid]
            entry.status, entry.ended = launch.exit
            self._exited(entry)

    def _give_up(self, pod: str) -> None:
        """Abort the starts in a pod that is being removed."""
        for launch in self._launches.pending(lambda launch: launch.identity.startswith(pod + ".")):
            self._launches.give_up(launch, "the pod is being removed")

    def _started(
        self, entry: ProcessEntry, more: dict[str, Any] | None = None, fds: Sequence[int] = ()
    ) -> Reply:
        self._entries[entry.identity] = entry
        self._by_pid[entry.pid] = entry
        return Reply(entry.describe() | (more or {}), fds)

    # Processes that were started.

    def _do_attach(self, request: dict[str, Any]) -> Reply:
        """Describe a process, and send our ends of its streams."""
        entry = self._entries[request["id"]]
        return Reply(entry.describe(), list(entry.pipes.values()))

    def _do_kill(self, request: dict[str, Any]) -> Reply:
        if launch := self._launches.find(request["id"]):
            self._launches.give_up(launch, "it was killed before it had started")
            return Reply({"running": True})
        entry = self._entries.get(request["id"])
        if entry is None or entry.status is not None:
            return Reply({"running": False})
        if entry.owner == "exec":
            kill_session(entry.pid, request["signal"])
        else:
            os.kill(entry.pid, request["signal"])
        return Reply({"running": True})

    def _do_close_stdin(self, request: dict[str, Any]) -> Reply:
        """Close our end of a container's stdin: it reads EOF once the kubelet has closed its end, too."""
        entry = self._entries[request["id"]]
        if "stdin" in entry.pipes:
            os.close(entry.pipes.pop("stdin"))
        return Reply()

    def _do_list(self, request: dict[str, Any]) -> Reply:
        entries = [entry.describe() for entry in self._entries.values()]
        return Reply({"entries": entries, "pods": self._addresses, "forkserver": self._forkserver.ready})

    def _do_delete(self, request: dict[str, Any]) -> Reply:
        """Drop a process whose exit was recorded elsewhere, or will not be requested."""
        self._delete(request["id"])
        return Reply()

    def _do_delete_pod(self, request: dict[str, Any]) -> Reply:
        """Drop all containers of a pod that has been deleted."""
        self._give_up(request["pod"])
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
            elif pid == self._launcher_pid:
                self._launcher_pid = 0
            else:
                self._launches.child_exited(pid, status)
        if reaped and self._plain:
            plain.end_strays(self._known_pids)

    def _known_pids(self) -> set[int]:
        return {*self._by_pid, *self._launches.pids(), self._launcher_pid}

    def _exited(self, entry: ProcessEntry) -> None:
        if entry.mount_namespace:
            namespaces.kill_in_mount_namespace(entry.mount_namespace)
        if entry.owner == "exec":
            del self._entries[entry.identity]
        self._connections.send_all({"event": "exit", **entry.describe()})
        if entry.forgotten:
            self._drop_entry(entry)
        if self._plain:
            # Kill the commands that run in it; with a PID namespace, the kernel does.
            for process in self._entries.values():
                if process.container == entry.identity and process.status is None:
                    kill_session(process.pid)


def _refusal(error: ContainerStartError) -> Reply:
    return Reply({"error": error.message, "stage": error.stage})


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
    # The objects created so far are permanent, and a collection in a fork would copy the pages it shares.
    gc.freeze()
    RuntimeInit(settings, listener).run()


if __name__ == "__main__":
    main()
