"""Fair shares of resources that all namespaces use, so that no namespace starves the others.

Two kinds: a resource that is held for a while (a connection, an upstream query) is counted, and one that is
spent (processor time of this process) has an allowance that refills. Not here: the kernel's limits per user.
"""

import errno
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from localkube.paths import write_private

log = logging.getLogger(__name__)

# Descriptors that the kubelet keeps for itself: pods' pipes, watches, probes, its own files.
OWN_DESCRIPTORS = 0.25
MAX_FLOWS, MIN_FLOWS = 8192, 64
REMEMBERED_NAMESPACES = 4096
# In the cluster's directory.
POD_NAMESPACES = "pod-namespaces"
MAX_ADDED = 1024  # lines of that file, before it is written anew


class PodNamespaces:
    """The namespace of each pod's address; an unknown address counts as a namespace of its own.

    Args:
        file: Stores them as well, for the gateway, which is outside of the cluster's network.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._namespaces: dict[str, str] = {}
        self._added = MAX_ADDED

    def add(self, address: str, namespace: str) -> None:
        """Record the address of a pod before its containers start."""
        if self._namespaces.get(address) != namespace:
            self._namespaces[address] = namespace
            if self._file:
                try:
                    self._write(self._file, address)
                except OSError as error:  # a full disk: the gateway counts the pod by itself
                    self._added = MAX_ADDED
                    log.warning("the namespace of %s is not recorded: %s", address, error)

    def _write(self, file: Path, address: str) -> None:
        """Append the line of an address, the last of which counts; replace the file when it is long."""
        if self._added >= MAX_ADDED:
            lines = (f"{address} {namespace}\n" for address, namespace in self._namespaces.items())
            write_private(file, "".join(lines))
            self._added = 0
            return
        self._added += 1
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{address} {self._namespaces[address]}\n".encode())
            # The gateway reads it again when its time has changed; the kernel's has a resolution of 4 ms.
            os.utime(descriptor, ns=(time.time_ns(), time.time_ns()))
        finally:
            os.close(descriptor)

    def of(self, address: str) -> str:
        return self._namespaces.get(address, address)


@dataclass(eq=False)
class Holding:
    """One unit of a share; ``evict`` closes its connection or flow for a new one, where that is possible."""

    client: str
    namespace: str
    evict: Callable[[], None] | None = None


@dataclass
class Shares:
    """The units in use of a resource that has ``total`` units.

    A namespace may have a quarter, and a client an eighth. A client at its limit evicts its own oldest unit
    for a new one, where that is possible.
    """

    total: int
    namespaces: PodNamespaces = field(default_factory=PodNamespaces)
    of_namespace: int = 0
    of_client: int = 0
    _held: dict[str, dict[Holding, None]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _all: int = 0

    def __post_init__(self) -> None:
        self.of_namespace = self.of_namespace or max(self.total // 4, 1)
        self.of_client = self.of_client or max(self.total // 8, 1)

    def acquire(self, client: str, evict: Callable[[], None] | None = None) -> Holding | None:
        """Take one unit for a client, by its address; None if its share or the total is used up."""
        holdings = self._held.get(client, {})
        namespace = self.namespaces.of(client)
        if self._is_full(namespace, len(holdings)) and evict:
            oldest = next((holding for holding in holdings if holding.evict), None)
            if oldest and oldest.evict:
                oldest.evict()
                holdings = self._held.get(client, {})
        if self._is_full(namespace, len(holdings)):
            return None
        holding = Holding(client, namespace, evict)
        self._held.setdefault(client, {})[holding] = None
        self._counts[namespace] += 1
        self._all += 1
        return holding

    def release(self, holding: Holding) -> None:
        """Return a unit; idempotent."""
        holdings = self._held.get(holding.client, {})
        if holding not in holdings:
            return
        del holdings[holding]
        if not holdings:
            del self._held[holding.client]
        self._all -= 1
        self._counts[holding.namespace] -= 1
        if not self._counts[holding.namespace]:
            del self._counts[holding.namespace]

    def held(self, client: str) -> int:
        return len(self._held.get(client, ()))

    def _is_full(self, namespace: str, of_client: int) -> bool:
        return (
            self._all >= self.total
            or self._counts[namespace] >= self.of_namespace
            or of_client >= self.of_client
        )


class Allowances:
    """The allowance of each namespace, by default in seconds of a core: a token bucket.

    Args:
        refill: Units per second.
        burst: The capacity of the bucket.
    """

    def __init__(
        self,
        namespaces: PodNamespaces,
        *,
        refill: float = 0.1,
        burst: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespaces, self._refill, self._burst, self._clock = namespaces, refill, burst, clock
        self._remaining: dict[str, tuple[float, float]] = {}

    def spend(self, client: str, units: float) -> bool:
        """Take from the allowance of a client's namespace; False if it is used up."""
        namespace, now = self._namespaces.of(client), self._clock()
        remaining, since = self._remaining.get(namespace, (self._burst, now))
        remaining = min(self._burst, remaining + (now - since) * self._refill) - units
        if len(self._remaining) >= REMEMBERED_NAMESPACES:
            self._remaining.clear()
        self._remaining[namespace] = remaining, now
        return remaining > 0

    def try_spend(self, client: str, units: float) -> bool:
        """Take from the allowance only if it suffices; a refused request costs nothing."""
        if self.spend(client, units):
            return True
        self.spend(client, -units)
        return False


@dataclass
class RelayLimits:
    """The shares of a client in all relayed flows, and of a namespace in the sockets that listen for them."""

    flows: Shares = field(default_factory=lambda: Shares(MAX_FLOWS))
    listeners: Shares = field(default_factory=lambda: Shares(MAX_FLOWS))

    @classmethod
    def of_process(cls, namespaces: PodNamespaces) -> "RelayLimits":
        """Divide the descriptors of this process, less a reserve, at two for each flow."""
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        flows = max(MIN_FLOWS, min(MAX_FLOWS, int(limit * (1 - OWN_DESCRIPTORS)) // 4))
        return cls(Shares(flows, namespaces), Shares(flows, of_client=flows // 4))

    def acquire_listener(self, namespace: str) -> Holding:
        """Count a listener of a namespace."""
        holding = self.listeners.acquire(namespace)
        if holding is None:
            limit = self.listeners.of_client
            raise OSError(
                errno.EDQUOT, f"at most {limit} ports of Services and pods of a namespace are served"
            )
        return holding
