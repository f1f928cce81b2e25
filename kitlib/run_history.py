"""Reading a run's history from its cluster: all that its workers have written, and what was done to them.

What it comes to is in `history` and `timeline`; following it live is in `widgets.lab`.
"""

import time
from collections.abc import Iterable

from kitlib import logs, pods
from kitlib.errors import Rejected
from kitlib.evidence import Evidence
from kitlib.history import History
from kitlib.kube import Kube
from kitlib.manifests import Object
from kitlib.tables import moment
from kitlib.tracebacks import Line
from kitlib.widgets.timeline import Timeline

NODES_NAMESPACE = "default"  # where Events about nodes are, since nodes are in none


class Listener:
    """What has been read of a run's pods, so that it is still known when they are gone.

    Args:
        kube: The cluster's API.
        name: The run's.
        evidence: What was kept of pods that have left.
    """

    def __init__(self, kube: Kube, name: str, evidence: Evidence) -> None:
        self.kube, self.name, self.evidence = kube, name, evidence
        self.heard: dict[str, tuple[str, str, list[Line]]] = {}  # by the pods' uids: name, node, lines

    def listen(self, there: Iterable[Object]) -> None:
        """Read what these pods have written until now; what a node now silent has told before stays."""
        seen = [(pod, logs.read_if_reachable(self.kube, pod)) for pod in there]
        for pod, lines in (*self.evidence.kept.values(), *seen):
            meta = pod["metadata"]
            before = self.heard.get(meta["uid"], ("", "", []))[2]
            self.heard[meta["uid"]] = (
                meta["name"],
                pod["spec"].get("nodeName", ""),
                max(lines, before, key=len),
            )

    def timeline(self, there: Iterable[Object], *, over: bool) -> Timeline:
        """Return the run's timeline until now, or of a run that is over, until its end.

        Args:
            there: Its pods.
            over: Whether it has ended.
        """
        there = list(there)
        self.listen(there)
        history = History(self.name)
        for worker, node, lines in self.heard.values():
            history.hear(worker, node, (line.text for line in lines))
        ended = max(
            (moment(pods.finished_at(pod)).timestamp() for pod in there if pods.finished(pod)), default=0
        )
        now = ended if over and ended else time.time()
        return Timeline.of(history.timeline(told(self.kube), now=now, store=[f"{self.name}-store"]))


def told(kube: Kube) -> list[Object]:
    """Return the Events of the namespace, and those about nodes as far as this user may see them."""
    events = kube.get_all("Event")
    if kube.namespace != NODES_NAMESPACE:
        try:
            events += kube.within(NODES_NAMESPACE).get_all("Event", fields="involvedObject.kind=Node")
        except Rejected as error:
            if error.status != 403:
                raise
    return events
