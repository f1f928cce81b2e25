"""Switching a cluster's nodes off and on, and pretending more of them, to see what Kubernetes makes of it.

A provider that can carries it out in ``_switch``; the others' machines are not the kit's to switch off.
"""

from abc import ABC, abstractmethod
from datetime import UTC, datetime

from kitlib.display.tables import Table
from kitlib.errors import BadInput
from kitlib.k8s.client import Kube
from kitlib.k8s.events import make_event, write_event
from kitlib.k8s.quantities import check_count

MOST_SIMULATED = 5000
DONE = {
    "stop": "Stopped",
    "start": "Started",
    "cut": "Isolated",
    "heal": "Reconnected",
}  # of Events on the node


class NodeSwitches(ABC):
    """The part of a cluster that operates its nodes."""

    name: str
    provider: str
    kube: Kube

    @abstractmethod
    def nodes(self) -> Table:
        """Return its nodes."""

    def stop_node(self, node: str) -> Table:
        """Switch a node off: its processes end at once, and nobody is told. Return the nodes.

        Kubernetes notices by its silence after about 16 seconds, and evicts its pods when their toleration of
        ``node.kubernetes.io/unreachable`` has passed: 300 seconds, if they do not say otherwise.

        Raises:
            BadInput: The provider's nodes cannot be switched off.
            ProviderFailed: There is no such node.

        Example:
            >>> cluster.stop_node("node-3")
        """
        return self._switched("stop", node)

    def start_node(self, node: str) -> Table:
        """Switch a node on again: it drops what was deleted meanwhile, and starts the rest anew."""
        return self._switched("start", node)

    def cut(self, node: str) -> Table:
        """Cut a node off the network: what runs there runs on, unheard and unreached. Return the nodes."""
        return self._switched("cut", node)

    def heal(self, node: str) -> Table:
        """Bring a node that was cut off back to the network: pods that were evicted meanwhile end there."""
        return self._switched("heal", node)

    def simulate_nodes(self, count: int) -> None:
        """Have so many nodes whose pods only report that they run; 0 removes them.

        They have the label and the taint ``trainyard/simulated``: only pods that tolerate it land there. So
        scheduling can be seen at a scale that no machine has.

        Example:
            >>> cluster.simulate_nodes(100)
        """
        check_count(count, what="count", least=0, most=MOST_SIMULATED)
        self._simulate(count)

    def _switched(self, verb: str, node: str) -> Table:
        now = datetime.now(UTC)
        self._switch(verb, node)
        found = {"metadata": {"name": node, "uid": node}}  # kubelets write the name for both
        reason = DONE[verb]
        write_event(
            self.kube,
            make_event(found, "Node", reason, f"node {node} was {reason.lower()} on purpose", at=now),
        )
        return self.nodes()

    def _switch(self, verb: str, node: str) -> None:
        raise self._not_ours(verb, f'node "{node}"')

    def _simulate(self, count: int) -> None:
        raise self._not_ours("simulate", f"{count} nodes")

    def _not_ours(self, verb: str, about: str) -> BadInput:
        return BadInput(
            f"the nodes of a cluster of the provider {self.provider} are not the kit's to {verb}",
            about=f'{about} of cluster "{self.name}"',
            fix='use a local cluster: kit.create_cluster("local")',
        )
