"""What has been heard of a run's workers until now, kept so that a timeline can be made at any time. Pure.

A worker is known by its pod's name, which stays when the pod is made anew; what it said before is kept.
"""

from collections.abc import Iterable

from kitlib.k8s.manifests import Object
from kitlib.metrics import events as metrics
from kitlib.metrics.disruptions import disruptions
from kitlib.metrics.events import Event
from kitlib.metrics.rendezvous import WorkerLog
from kitlib.metrics.timeline import Timeline, build


class History:
    """Collects what pods write and what happens to them.

    Args:
        name: The run's.

    Example:
        >>> history = History("lab")
        >>> history.add_lines("lab-0", "node-1", lines)
        >>> history.timeline(cluster_events, now=time.time())
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: dict[str, list[Event]] = {}
        self.nodes: dict[str, str] = {}

    def add_worker(self, worker: str, node: str) -> None:
        """Take note of a worker and where it is."""
        self.heard.setdefault(worker, [])
        self.nodes[worker] = node or self.nodes.get(worker, "")

    def add_lines(self, worker: str, node: str, lines: Iterable[str]) -> None:
        """Take in what a worker wrote; lines that are for people say nothing here."""
        self.add_worker(worker, node)
        self.heard[worker] += metrics.parse(lines)

    def timeline(self, events: Iterable[Object], *, now: float, store: Iterable[str] = ()) -> Timeline:
        """Return the timeline until now.

        Args:
            events: Of the namespace and of nodes, of which those are taken that are about this run.
            now: Seconds since 1970; of a run that has ended, when it did.
            store: The pods at which the workers meet.
        """
        done = disruptions(events, run=self.name, workers=self.nodes, store=set(store))
        logs = [
            WorkerLog(worker, self.nodes[worker], tuple(sorted(said, key=lambda event: event.time)))
            for worker, said in sorted(self.heard.items())
        ]
        return build(self.name, logs, done, now=now)
