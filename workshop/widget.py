"""A workshop, watched: who is at which notebook, whose cells and pods fail and why, and how far everybody is.

One thread follows the attendees' namespaces, what their notebooks tell, and all pods; another draws. What a
row says is in `roster`, the static picture in `workshop_picture`.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kitlib.errors import KitError
from kitlib.k8s.client import Kube
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.widgets.picture import Picture
from kitlib.widgets.watch import Watch
from workshop import attendee_status, progress_reporter
from workshop import picture as workshop_picture
from workshop.attendee_status import Seat

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView


class WorkshopWatch(Watch):
    """A workshop as it goes; made by :func:`workshop.watch`.

    Args:
        kube: The instructor's.
        label: By which the attendees' namespaces are known.
        minutes: How long at most.

    Attributes:
        rows: Of the table, in the columns of `roster.COLUMNS`.
    """

    kind = "workshop"

    def __init__(self, kube: Kube, *, label: str, minutes: float) -> None:
        super().__init__(kube.cluster)
        self.kube, self.label = kube.within(""), label
        self.until = time.monotonic() + 60 * minutes
        self.seats: list[Seat] = []

    @property
    def rows(self) -> list[list[object]]:
        with self.lock:
            return [list(each) for each in attendee_status.table(self.seats).rows]

    def work(self) -> dict[str, Callable[[], None]]:
        return {"attendees": self._follow, "draw": self._draw}

    def _follow(self) -> None:
        places = WatchSpec("ConfigMap", labels=self.label, fields=f"metadata.name={progress_reporter.PLACE}")
        try:
            for seen in watch_objects(
                self.kube, WatchSpec("Namespace", labels=self.label), places, WatchSpec("Pod")
            ):
                every = (list(seen[kind].values()) for kind in ("Namespace", "ConfigMap", "Pod"))
                with self.lock:
                    self.seats = attendee_status.seats(*every, label=self.label)
                if self.stopping.is_set() or time.monotonic() > self.until:
                    break
        except KitError as error:
            self.trouble, self.over = error.what, True
        finally:
            self.stopping.set()

    def push(self, view: "LiveView") -> int:
        return view.show(facts=self.facts(), tables={"attendees": self.rows}, summary=repr(self))

    def facts(self) -> dict[str, object]:
        """Return what is said in words: title, figures, how far each is in each notebook."""
        with self.lock:
            seats = self.seats
        gone = self.finished or self.stopping.is_set()
        columns, shares = workshop_picture.shares(seats)
        return {
            "title": self.title,
            "about": f'workshop on cluster "{self.title}"',
            "phase": "Ended" if gone else "Live",
            "figures": [[name, str(count)] for name, count in self.counted(seats).items()],
            "notes": [self.trouble] * bool(self.trouble),
            "columns": [each.partition("_")[0] for each in columns],
            "progress": [[seat.name, *row] for seat, row in zip(seats, shares, strict=True)],
            "finished": gone,
        }

    @staticmethod
    def counted(seats: list[Seat]) -> dict[str, int]:
        """Return how many attendees there are, were seen, run a cell, and have some trouble."""
        now = [each.places[0].state for each in seats if each.places]
        return {
            "attendees": len(seats),
            "seen": len(now),
            "run a cell": now.count(progress_reporter.RUNNING),
            "in trouble": sum(bool(each.troubles) for each in seats),
        }

    def picture(self) -> Picture:
        with self.lock:
            return Picture(workshop_picture.draw(self.seats, title=self.title), repr(self))

    def still(self) -> list[dict[str, str]]:
        with self.lock:
            table = attendee_status.table(self.seats)
        return [self.picture().bundle(), {"text/plain": repr(table), "text/html": table._repr_html_()}]

    def state(self) -> object:
        return repr(self.rows)

    def __repr__(self) -> str:
        with self.lock:
            figures = ", ".join(f"{name}: {count}" for name, count in self.counted(self.seats).items())
        return f"Workshop on cluster {self.title}: {figures}" + (f"; {self.trouble}" if self.trouble else "")
