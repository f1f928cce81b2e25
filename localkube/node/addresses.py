"""Where an address of the cluster is found on this machine.

In a site the cluster's network is real, and every address is where it says. In plain mode pods, nodes and
Services keep their addresses in the API, and this says which address of the loopback interface stands for
each. Whoever connects to a pod, a node or a Service asks here first.
"""

from typing import Protocol


class Addresses(Protocol):
    """How to reach the cluster's network from the agent."""

    def reach(self, host: str, port: int) -> tuple[str, int]:
        """Return the address to connect to, or to listen on, for one of the cluster's."""


class SiteAddresses:
    """The agent is in the cluster's network."""

    def reach(self, host: str, port: int) -> tuple[str, int]:
        return host, port
