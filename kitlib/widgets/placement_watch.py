"""A recording of pod placement, with the runs' losses.

One thread watches the pods and follows their logs, because nothing is known about deleted pods later. The
record is in `kitlib.metrics.placement`, the static plot in `plots`. There is no live view: the output is
updated after each cell.
"""

import time
from typing import TYPE_CHECKING

from kitlib.display.tables import Table
from kitlib.k8s import names, pods
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.watch import Snapshot, WatchSpec
from kitlib.metrics import events
from kitlib.metrics.placement import RUNNING, WAITING, Placement, group_of
from kitlib.widgets.plots import Picture, plot_placement
from kitlib.widgets.watch import ObjectWatch

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView


class PlacementWatch(ObjectWatch):
    """Pod placement over time; created by :meth:`kitlib.Cluster.watch_placement`."""

    is_live = False

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, minutes=60)
        nodes = allowed(lambda: kube.get_all("Node")) or []  # if forbidden, pods add their nodes
        self.placement: Placement = Placement(sorted(node["metadata"]["name"] for node in nodes))

    # Follow

    def specs(self) -> list[WatchSpec]:
        return [WatchSpec("Pod")]

    def update(self, snapshot: Snapshot, *, last: bool) -> None:
        with self.lock:
            self.placement.observe(snapshot["Pod"].values(), now=time.time())
        for pod in snapshot["Pod"].values():
            if names.RUN in (pod["metadata"].get("labels") or {}) and pods.started(pod):
                self.logs.follow(pod, group_of(pod))

    def collect(self) -> None:
        with self.lock:
            for group, line in self.logs.drain():
                event = events.parse_line(line.text)
                if event is None or event.event != "step" or event.time < self.began:
                    continue
                if (loss := events.finite_figure(event.fields.get("loss"))) is not None:
                    self.placement.add_loss(group, event.time, loss)

    # Display

    @property
    def _now(self) -> float:
        return self.ended or time.time()

    def table(self) -> Table:
        """Tabulate the pods: node, how long each waited and ran, and how it ended."""
        with self.lock:
            return self.placement.table(now=self._now)

    def picture(self) -> Picture:
        with self.lock:
            times = {"began": self.began, "now": self._now}
            return plot_placement(self.placement, title=f"cluster {self.title}", alt=repr(self), **times)

    def state(self) -> object:
        with self.lock:
            return len(self.placement.intervals), sum(map(len, self.placement.losses.values())), self.finished

    def push(self, view: "LiveView") -> int:
        return 0

    def __repr__(self) -> str:
        with self.lock:
            current = [interval.state for interval in self.placement.intervals if interval.ended is None]
            pod_count = len({interval.uid for interval in self.placement.intervals})
        running, waiting = current.count(RUNNING), current.count(WAITING)
        message = f"Placement in cluster {self.title}: {pod_count} pods seen, {running} run, {waiting} wait"
        return message + (f"; {self.error}" if self.error else "")
