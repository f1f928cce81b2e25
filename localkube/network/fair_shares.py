"""Shares of what all namespaces use at the same time, so that one of them leaves some for the others.

Two kinds: what is held for a while (a connection, a question upstream) is counted, and what is spent (the
time of this process) has an allowance that grows again. Not here: what the kernel counts for users.
"""

import errno
import logging
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
MOST_FLOWS, LEAST_FLOWS = 8192, 64
REMEMBERED_NAMESPACES = 4096
# In the cluster's directory.
POD_NAMESPACES = "pod-namespaces"


class PodNamespaces:
    """The namespace of each pod's address; an unknown address counts as a namespace of its own.

    Args:
        file: Also keeps them, for the gateway, which is outside of the cluster's network.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._namespaces: dict[str, str] = {}

    def add(self, address: str, namespace: str) -> None:
        """Note the address of a pod in which nothing runs yet."""
        if self._namespaces.get(address) != namespace:
            self._namespaces[address] = namespace
            if self._file:
                lines = (f"{address} {namespace}\n" for address, namespace in self._namespaces.items())
                try:
                    write_private(self._file, "".join(lines))
                except OSError as error:  # a full disk: the gateway counts the pod by itself
                    log.warning("the namespace of %s is not noted: %s", address, error)

    def of(self, address: str) -> str:
        return self._namespaces.get(address, address)


@dataclass(eq=False)
class Holding:
    """One unit of a share; ``evict`` ends what holds it, where that can be ended for another."""

    client: str
    namespace: str
    evict: Callable[[], None] | None = None


@dataclass
class Shares:
    """Counts of something of which there are ``total`` at a time.

    A namespace may have a quarter, and a client an eighth. A client that has its share ends its own oldest
    unit for a new one, where that can be ended.
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
        """Take one unit for a client, by its address; None if it has its share, or nothing is left."""
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
        """Return a unit; harmless when repeated."""
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
    """What each namespace may spend, by default seconds of a core: a burst, which fills up again.

    Args:
        refill: Units per second.
        burst: What an idle namespace has saved.
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
        self._left: dict[str, tuple[float, float]] = {}

    def spend(self, client: str, units: float) -> bool:
        """Take from the allowance of a client's namespace; False if it is used up."""
        namespace, now = self._namespaces.of(client), self._clock()
        left, since = self._left.get(namespace, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._refill) - units
        if len(self._left) >= REMEMBERED_NAMESPACES:
            self._left.clear()
        self._left[namespace] = left, now
        return left > 0

    def try_spend(self, client: str, units: float) -> bool:
        """Take from the allowance if there is as much left; what is refused costs nothing."""
        if self.spend(client, units):
            return True
        self.spend(client, -units)
        return False


@dataclass
class RelayLimits:
    """What one client may have of all relayed flows, and a namespace of the sockets that listen for them."""

    flows: Shares = field(default_factory=lambda: Shares(MOST_FLOWS))
    listeners: Shares = field(default_factory=lambda: Shares(MOST_FLOWS))

    @classmethod
    def of_process(cls, namespaces: PodNamespaces) -> "RelayLimits":
        """Divide the descriptors of this process, of which it keeps some, at two for each flow."""
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = max(LEAST_FLOWS, min(MOST_FLOWS, int(limit * (1 - OWN_DESCRIPTORS)) // 4))
        return cls(Shares(room, namespaces), Shares(room, of_client=room // 4))

    def acquire_listener(self, namespace: str) -> Holding:
        """Count a listener of a namespace."""
        holding = self.listeners.acquire(namespace)
        if holding is None:
            most = self.listeners.of_client
            raise OSError(
                errno.EDQUOT, f"at most {most} ports of Services and pods of a namespace are served"
            )
        return holding
