"""A real local cluster that stands behind a simulated cloud's: its API, its certificate, its machines.

Its API server asks the fake whose a token is. Its machines are switched off and not registered until a node
group wants them: then they register with the group's labels, as a cloud's do.
"""

import json
import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

SECONDS = 180


@dataclass
class BackingNode:
    """A node of the local cluster, and whose it is at the cloud."""

    name: str
    group: str = ""


class BackingCluster:
    """A local cluster behind a simulated one.

    Args:
        webhook: Where its API server asks whose a token is.
        nodes: How many machines there are for all node groups together.
        options: For ``python -m localkube create``.

    Attributes:
        endpoint: Of its API.
        ca: The certificate of its authority, base64.
        program: kubectl, as a command.
    """

    def __init__(self, webhook: str, *, nodes: int = 4, options: tuple[str, ...] = ()) -> None:
        self.name = f"behind-{secrets.token_hex(3)}"
        self.webhook, self.options = webhook, options
        self._machines = [BackingNode(f"node-{index}") for index in range(nodes)]
        self._orders: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="backing", daemon=True)
        self.failed: Exception | None = None

    def __enter__(self) -> "BackingCluster":
        flags = ["--nodes", str(len(self._machines)), "--token-webhook", self.webhook, *self.options]
        status = _localkube("create", self.name, *flags)
        self.kubeconfig = Path(status["kubeconfig"])
        self.program = status["kubectl"]
        server = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]
        self.endpoint, self.ca = server["server"], server["certificate-authority-data"]
        try:
            for machine in self._machines:
                self._off(machine)
            self._thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join(SECONDS)
        _localkube("delete", self.name)

    def kubectl(self, *words: str) -> str:
        """Return what kubectl says, as the cluster's own administrator."""
        command = [*self.program, "--kubeconfig", str(self.kubeconfig), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def set(
        self, group: str, count: int, labels: Mapping[str, str], taints: tuple[Mapping[str, str], ...] = ()
    ) -> None:
        """Let a node group have so many machines, soon."""
        self._orders.put(lambda: self._set(group, count, labels, taints))

    def settled(self) -> None:
        """Wait until all that was asked for is so.

        Raises:
            Exception: What went wrong meanwhile.
        """
        done = threading.Event()
        self._orders.put(done.set)
        if not done.wait(SECONDS):
            raise TimeoutError("the machines do not become what was asked for")
        if self.failed is not None:
            raise self.failed

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                order()
            except Exception as error:  # noqa: BLE001 told by `settled`
                self.failed = error

    def _set(self, group: str, count: int, labels: Mapping, taints: tuple[Mapping, ...]) -> None:
        has = [machine for machine in self._machines if machine.group == group]
        for machine in has[count:]:
            self._off(machine)
        free = [machine for machine in self._machines if not machine.group]
        if count - len(has) > len(free):
            raise RuntimeError(f"{group} wants {count} machines, and {len(free)} are free behind it")
        for machine in free[: max(count - len(has), 0)]:
            self._on(machine, group, labels, taints)

    def _on(self, machine: BackingNode, group: str, labels: Mapping, taints: tuple[Mapping, ...]) -> None:
        _localkube("node", "start", self.name, machine.name)
        self.kubectl("wait", "--for=create", f"node/{machine.name}", "--timeout=120s")
        words = [f"{key}={value}" for key, value in labels.items()]
        self.kubectl("label", "--overwrite", "node", machine.name, *words)
        for taint in taints:
            effect = "".join(word.title() for word in taint["effect"].split("_"))
            self.kubectl("taint", "node", machine.name, f"{taint['key']}={taint.get('value', '')}:{effect}")
        machine.group = group

    def _off(self, machine: BackingNode) -> None:
        _localkube("node", "stop", self.name, machine.name)
        with suppress(RuntimeError):
            self.kubectl("delete", "node", machine.name, "--ignore-not-found", "--wait=false")
        machine.group = ""


def _localkube(*words: str) -> dict:
    command = [sys.executable, "-m", "localkube", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = lines[-1] if lines else {"error": done.stderr}
    if "error" in last:
        raise RuntimeError(f"localkube {' '.join(words)}: {last['error']}")
    return last.get("result") or {}


def way_out() -> str:
    """Return the address by which this machine speaks to others; nothing is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return probe.getsockname()[0]
