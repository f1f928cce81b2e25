"""PID 1 of a site: makes its network, and starts, signals and reaps every process in it, on orders.

A program of its own, run with ``python -S`` and the standard library alone, because a small parent forks
quickly and because it must survive everything else: an agent that died finds here which containers still
run, their output pipes with what they wrote meanwhile, the journals of their logs, and how the others ended.
It decides nothing.
The supervisor's end is its end, and its end is the end of every process in the site.

Requests arrive on a Unix socket, one message each (see ``orders.py``). Its own helpers are beside it.
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
from typing import Any, NoReturn

# In place of this folder, whose modules would hide the standard library's.
sys.path.pop(0)
sys.path.insert(0, os.path.abspath(__file__).removesuffix("/localkube/runtime/init.py"))

from localkube.runtime import container as sandbox
from localkube.runtime import exec, host_process, messages, pause, plain, stdio
from localkube.runtime.bootstrap import enter_site
from localkube.runtime.forkserver_link import ForkserverClient
from localkube.runtime.kill_session import kill_session
from localkube.runtime.netlink import Netlink
from localkube.runtime.pod_network import make_network, make_pod, move_pod, plug_node, socket_in, unplug_node
from localkube.runtime.process_table import Entry


class RuntimeInit:
    """Carries out orders, one after the other."""

    def __init__(self, settings: dict[str, Any], listener: socket.socket) -> None:
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._clients: list[socket.socket] = []
        self._client: socket.socket | None = None
        self._entries: dict[str, Entry] = {}
        self._by_pid: dict[int, Entry] = {}
        self._pods: dict[str, dict[str, int]] = {}
        self._addresses: dict[str, str] = {}
        self._unplugged: dict[str, str] = {}
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._netlink = Netlink() if settings["mode"] != "plain" else None
        self._forkserver = ForkserverClient(self._selector)
        self._plain = settings["mode"] == "plain"
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
        order, fds = received
        self._client = client
        try:
            answer, answer_fds, done = getattr(self, "_do_" + order["op"])(order, fds)
        except sandbox.LaunchError as error:
            answer, answer_fds, done = {"error": error.message, "stage": error.stage}, [], []
        except (OSError, KeyError) as error:
            answer, answer_fds, done = (
                {"error": f"{type(error).__name__}: {error}", "stage": "sandbox"},
                [],
                [],
            )
        finally:
            for descriptor in fds:
                os.close(descriptor)
        self._send(client, {"answer": order["number"], **answer}, answer_fds)
        for descriptor in done:
            os.close(descriptor)

    def _send(self, client: socket.socket, message: dict, fds: list[int] | None = None) -> None:
        try:
            messages.send(client, message, fds or [])
        except ConnectionError:
            self._drop(client)

    def _do_hello(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Answer with the way out of the site: the gateway that serves it runs outside."""
        return {}, [self._gate], []

    def _do_socket(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Answer with a TCP socket of the site's network, or of a pod's, for a client outside of it.

        ``loopback`` is the address on which what listens on the pod's localhost is reached by it.
        """
        family, loopback = (socket.AF_INET6, "::1") if order.get("v6") else (socket.AF_INET, "127.0.0.1")
        if self._plain and "pod" in order:
            loopback = self._addresses[order["pod"]]
        pod = {} if self._plain else self._pods.get(order.get("pod"), {})
        made = socket_in(pod, family) if pod else socket.socket(family)
        descriptor = made.detach()
        return {"loopback": loopback}, [descriptor], [descriptor]

    def _do_component(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Start a program of the site itself: its network and processes, the host's file system."""
        pid = host_process.start(order, fds, null=self._null, plain=self._plain)
        return self._started(Entry(order["id"], "component", pid, time.time())), [], []

    def _do_forkserver(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Start the process from which containers of the kit's Python are forked."""
        with self._forkserver.open() as theirs:
            pid = host_process.start(order, [theirs.fileno()], null=self._null, plain=self._plain)
        return self._started(Entry(order["id"], "component", pid, time.time())), [], []

    def _do_sandbox(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Make the namespaces that the containers of a pod share."""
        if order["pod"] not in self._pods:
            self._pods[order["pod"]] = {} if self._plain else make_pod(self._netlink, order)
            self._addresses[order["pod"]] = order["address"]
            for prefix, bridge in self._unplugged.items():
                if order["address"].startswith(prefix):
                    move_pod(self._netlink, order["address"], bridge)
        return {}, [], []

    def _do_unplug(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Take a node off the network, and its pods, whose addresses begin with ``prefix``."""
        if self._plain:
            plain.unplug_node(order)
        else:
            unplug_node(self._netlink, order, self._pods_of(order["prefix"]))
            self._unplugged[order["prefix"]] = order["bridge"]
        return {}, [], []

    def _do_plug(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Bring a node back to the network."""
        if self._unplugged.pop(order["prefix"], None):
            plug_node(self._netlink, order, self._pods_of(order["prefix"]))
        return {}, [], []

    def _pods_of(self, prefix: str) -> list[str]:
        return [address for address in self._addresses.values() if address.startswith(prefix)]

    def _do_remove(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Forget a pod's namespaces; the kernel frees them with their last process."""
        self._addresses.pop(order["pod"], None)
        pod = self._pods.pop(order["pod"], {})
        pause.let_go(pod)
        stdio.close(pod)
        return {}, [], []

    def _do_run(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Start a container; the answer carries our ends of its streams."""
        if order["id"] in self._entries:
            return self._do_attach(order, fds)
        with stdio.streams(order, self._null) as (ours, theirs):
            started, forked = self._launch(order, theirs | self._pods[order["pod"]])
        ours = stdio.kept(ours, started.terminal)
        if started.terminal is None:
            ours["journal"] = os.memfd_create("journal", os.MFD_CLOEXEC)
        context = {name: order[name] for name in ("env", "cwd", "plain") if name in order}
        entry = Entry(order["id"], "container", started.pid, time.time(), ours, context)
        if "pause" in self._pods[order["pod"]]:
            entry.mounts = pause.mounts_of(started.pid)
        return self._started(entry) | {"forked": forked}, list(ours.values()), []

    def _do_exec(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Start a command in a container that runs; its streams go to who orders it, and are not kept."""
        container = self._entries[order["container"]]
        with stdio.streams(order, self._null) as (ours, theirs):
            if container.status is not None:
                raise sandbox.LaunchError("sandbox", "the container has ended")
            environment = container.context["env"] | order.get("env", {})
            joined = container.context | order | {"env": environment, "spawner": os.getpid()}
            started = (plain if self._plain else exec).join(joined, theirs, container=container.pid)
        ours = stdio.kept(ours, started.terminal)
        entry = Entry(
            order["id"],
            "exec",
            started.pid,
            time.time(),
            client=self._client,
            container=order["container"],
        )
        answer = self._started(entry) | {"streams": list(ours)}
        return answer, list(ours.values()), list(ours.values())

    def _launch(self, order: dict, given: dict[str, int]) -> tuple[sandbox.Launched, bool]:
        order["scratch"], order["spawner"] = self._settings["scratch"], os.getpid()
        if order.get("warm") and self._forkserver.ready and not order.get("tty"):
            started = self._forkserver.fork(order, given)
            if started is not None:
                return started, True
        return (plain if self._plain else sandbox).launch(order, given), False

    def _started(self, entry: Entry) -> dict[str, Any]:
        self._entries[entry.identity] = entry
        self._by_pid[entry.pid] = entry
        return entry.describe()

    def _do_attach(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Answer with what is known of a process, and our ends of its streams."""
        entry = self._entries[order["id"]]
        return entry.describe(), list(entry.pipes.values()), []

    def _do_kill(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        entry = self._entries.get(order["id"])
        running = entry is not None and entry.status is None
        if running and entry.owner == "exec":
            kill_session(entry.pid, order["signal"])
        elif running:
            os.kill(entry.pid, order["signal"])
        return {"running": running}, [], []

    def _do_end_input(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Close our end of a container's stdin: it reads the end once the agent has closed its own."""
        entry = self._entries[order["id"]]
        if "stdin" in entry.pipes:
            os.close(entry.pipes.pop("stdin"))
        return {}, [], []

    def _do_list(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        entries = [entry.describe() for entry in self._entries.values()]
        return {"entries": entries, "pods": self._addresses, "forkserver": self._forkserver.ready}, [], []

    def _do_forget(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Drop a process whose end was recorded elsewhere, or will be asked for by nobody."""
        entry = self._entries.get(order["id"])
        if entry is not None:
            entry.forgotten = True
            if entry.status is not None:
                self._drop_entry(entry)
        return {}, [], []

    def _drop_entry(self, entry: Entry) -> None:
        self._entries.pop(entry.identity, None)
        for reader in entry.pipes.values():
            os.close(reader)

    def _do_forget_pod(self, order: dict, fds: list[int]) -> tuple[dict, list[int], list[int]]:
        """Drop all containers of a pod: it is gone, nobody will ask."""
        for identity in [key for key in self._entries if key.startswith(order["pod"] + ".")]:
            self._do_forget({"id": identity}, [])
        return {}, [], []

    def _reap(self) -> None:
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            ended = True
            entry = self._by_pid.pop(pid, None)
            if entry is not None:
                entry.status, entry.ended = status, time.time()
                if entry.mounts:
                    pause.end_rest(entry.mounts)
                if entry.owner == "exec":
                    del self._entries[entry.identity]
                for client in list(self._clients):
                    self._send(client, {"event": "exit", **entry.describe()})
                if entry.forgotten:
                    self._drop_entry(entry)
                if self._plain:
                    self._end_commands(entry)
        if ended and self._plain:
            plain.end_strays(self._by_pid)

    def _end_commands(self, container: Entry) -> None:
        """End the commands that joined a container which has ended; a PID namespace does so by itself."""
        for entry in self._entries.values():
            if entry.container == container.identity and entry.status is None:
                kill_session(entry.pid)


def main() -> NoReturn:
    settings = json.loads(sys.argv[1])
    listener = socket.socket(fileno=settings["listener"])
    os.set_inheritable(listener.fileno(), False)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if settings["mode"] == "plain":
        plain.enter(settings)
    else:
        enter_site(settings)
    # What is here by now stays, and a collection in a fork would copy the pages that it shares.
    gc.freeze()
    RuntimeInit(settings, listener).run()


if __name__ == "__main__":
    main()
