"""A cluster's pods, recorded: who runs where, who waits, and the loss that the runs report meanwhile.

One thread follows the pods and their logs; deleted pods leave nothing that could be asked for later. What was
seen is in `kitlib.metrics.placement`, the picture in `placement_picture`. It does not move by itself: in a
notebook it is brought up to date after each cell.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from kitlib.display.tables import Table
from kitlib.errors import KitError, Rejected
from kitlib.k8s import logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.metrics import events
from kitlib.metrics.placement import RUNNING, WAITING, Placement, group_of
from kitlib.widgets import placement_picture
from kitlib.widgets.picture import Picture
from kitlib.widgets.watch import Watch

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView


class PlacementWatch(Watch):
    """Who ran where; made by :meth:`kitlib.Cluster.watch_placement`."""

    moves = False

    def __init__(self, kube: Kube, *, minutes: float) -> None:
        super().__init__(kube.cluster)
        self.kube = kube
        self.until = time.monotonic() + 60 * minutes
        self.began = time.time()
        self.ended: float | None = None
        self.placement = Placement(_nodes(kube))
        self._followers = logs.Followers()
        self._followed: set[str] = set()

    # Following

    def work(self) -> dict[str, Callable[[], None]]:
        return {"pods": self._follow, "draw": self._draw}

    def _follow(self) -> None:
        try:
            for seen in watch_objects(self.kube, WatchSpec("Pod")):
                with self.lock:
                    self.placement.see(seen["Pod"].values(), now=time.time())
                self._listen(seen["Pod"].values())
                if self.stopping.is_set() or time.monotonic() > self.until:
                    break
        except KitError as error:
            self.trouble, self.over = error.what, True
        finally:
            self.ended = time.time()
            self.stopping.set()
            self._followers.close()

    def _listen(self, seen: Iterable[Object]) -> None:
        for pod in seen:
            uid = pod["metadata"]["uid"]
            if uid not in self._followed and names.RUN in (pod["metadata"].get("labels") or {}):
                if not pods.started(pod):
                    continue
                self._followed.add(uid)
                ended = partial(logs.written, self.kube, pod)
                self._followers.add(group_of(pod), logs.Follower(self.kube, pod, ended))

    def _collect(self) -> None:
        lines, _ = self._followers.drain()
        with self.lock:
            for group, line in lines:
                event = events.parse_line(line.text)
                loss = event.fields.get("loss") if event is not None and event.event == "step" else None
                if isinstance(loss, int | float) and event.time >= self.began:
                    self.placement.hear(group, event.time, float(loss))

    # Showing

    @property
    def _now(self) -> float:
        return self.ended or time.time()

    def table(self) -> Table:
        """Return a row a pod: where it ran, how long it waited and ran, and how it ended."""
        with self.lock:
            return self.placement.table(now=self._now)

    def picture(self) -> Picture:
        with self.lock:
            figure = placement_picture.draw(
                self.placement, title=f"cluster {self.title}", began=self.began, now=self._now
            )
        return Picture(figure, repr(self))

    def still(self) -> list[dict[str, str]]:
        table = self.table()
        return [self.picture().bundle(), {"text/plain": repr(table), "text/html": table._repr_html_()}]

    def state(self) -> object:
        with self.lock:
            return len(self.placement.stays), sum(map(len, self.placement.losses.values())), self.finished

    def push(self, view: "LiveView") -> int:
        return 0

    def __repr__(self) -> str:
        with self.lock:
            lasting = [each.state for each in self.placement.stays if each.ended is None]
            seen = len({each.uid for each in self.placement.stays})
        running, waiting = lasting.count(RUNNING), lasting.count(WAITING)
        words = f"Placement in cluster {self.title}: {seen} pods seen, {running} run, {waiting} wait"
        return words + (f"; {self.trouble}" if self.trouble else "")


def _nodes(kube: Kube) -> list[str]:
    """Return the nodes; none if this user may not see them: then those on which pods are seen."""
    try:
        return sorted(each["metadata"]["name"] for each in kube.get_all("Node"))
    except Rejected as error:
        if error.status != 403:
            raise
        return []
