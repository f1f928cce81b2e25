"""The live view of a workshop: the status of each attendee, and a picture of their progress by notebook.

One thread watches the attendees' namespaces, the ConfigMaps of their progress, and all pods; another draws
the rows of `attendee_status`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kitlib.display.tables import Table
from kitlib.k8s.client import Kube
from kitlib.k8s.watch import Snapshot, WatchSpec
from kitlib.widgets.plots import THEME, Picture
from kitlib.widgets.watch import ObjectWatch
from trainyard_kit.workshop import attendee_status, progress_reporter
from trainyard_kit.workshop.attendee_status import AttendeeStatus, ended
from trainyard_kit.workshop.attendees import LABEL
from trainyard_kit.workshop.progress_reporter import FAILED, NotebookPosition

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView

ROW_HEIGHT = 0.24  # inches


class WorkshopWatch(ObjectWatch):
    """A live view of a workshop; created by :func:`trainyard_kit.workshop.watch`."""

    kind = "workshop"

    def __init__(self, kube: Kube, *, minutes: float) -> None:
        super().__init__(kube.in_namespace(""), minutes=minutes)
        self.statuses: list[AttendeeStatus] = []

    def specs(self) -> list[WatchSpec]:
        notebooks = f"metadata.name={progress_reporter.CONFIG_MAP}"
        return [
            WatchSpec("Namespace", labels=LABEL),
            WatchSpec("ConfigMap", labels=LABEL, fields=notebooks),
            WatchSpec("Pod"),
        ]

    def update(self, snapshot: Snapshot, *, last: bool) -> None:
        listed = (list(snapshot[kind].values()) for kind in ("Namespace", "ConfigMap", "Pod"))
        with self.lock:
            self.statuses = attendee_status.statuses(*listed)

    def push(self, view: "LiveView") -> int:
        return view.show(facts=self.facts(), tables={"attendees": self.table()}, summary=repr(self))

    def facts(self) -> dict[str, object]:
        """Facts for the view: title, figures, and the progress of each attendee by notebook."""
        with self.lock:
            statuses = self.statuses
        finished = self.finished or self.stopping.is_set()
        columns, progress = shares(statuses)
        return {
            "title": self.title,
            "about": f'workshop on cluster "{self.title}"',
            "phase": "Ended" if finished else "Live",
            "figures": [[name, str(count)] for name, count in self.count(statuses).items()],
            "notes": [self.error] * bool(self.error),
            "columns": [column.partition("_")[0] for column in columns],
            "progress": [[status.name, *row] for status, row in zip(statuses, progress, strict=True)],
            "finished": finished,
        }

    @staticmethod
    def count(statuses: list[AttendeeStatus]) -> dict[str, int]:
        """Count the attendees, and those that have reported, are running a cell, or have a problem."""
        states = [status.notebooks[0].state for status in statuses if status.notebooks]
        return {
            "attendees": len(statuses),
            "active": len(states),
            "running a cell": states.count(progress_reporter.RUNNING),
            "with problems": sum(bool(status.troubles) for status in statuses),
        }

    def picture(self) -> Picture:
        with self.lock:
            return Picture(draw(self.statuses, title=self.title), repr(self))

    def table(self) -> Table:
        with self.lock:
            return attendee_status.table(self.statuses)

    def state(self) -> object:
        return repr(self.table().rows)

    def __repr__(self) -> str:
        with self.lock:
            figures = ", ".join(f"{name}: {count}" for name, count in self.count(self.statuses).items())
        return f"Workshop on cluster {self.title}: {figures}" + (f"; {self.error}" if self.error else "")


def shares(statuses: Sequence[AttendeeStatus]) -> tuple[list[str], list[list[float]]]:
    """Tabulate the progress of each attendee by notebook.

    Returns:
        Names of notebooks, and a row for each attendee: the share of completed cells from 0 to 1, negative
        if a cell has failed.
    """
    positions = (position for status in statuses for position in status.notebooks)
    columns = sorted({position.notebook for position in positions if position.of})
    rows = []
    for status in statuses:
        by_name = {position.notebook: position for position in status.notebooks}
        rows.append([_share(by_name.get(column)) for column in columns])
    return columns, rows


def _share(progress: NotebookPosition | None) -> float:
    if progress is None or not progress.of:
        return 0.0
    share = 1.0 if ended(progress) else round(min(0.99, progress.cell / progress.of), 2)
    return -share if progress.state == FAILED else share


def draw(statuses: Sequence[AttendeeStatus], *, title: str) -> Figure:
    """Draw a row for each attendee with a bar for each notebook's progress."""
    columns, rows = shares(statuses)
    size = (2.2 + 0.75 * max(1, len(columns)), 0.8 + ROW_HEIGHT * max(1, len(statuses)))
    figure = Figure(figsize=size, layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots()
    for y, row in enumerate(rows):
        for x, share in enumerate(row):
            colour = THEME.bad if share < 0 else THEME.good if share == 1 else THEME.busy
            axes.add_patch(Rectangle((x, y + 0.15), 0.9, 0.7, facecolor=THEME.grid))
            axes.add_patch(Rectangle((x, y + 0.15), 0.9 * abs(share), 0.7, facecolor=colour))
    axes.set(xlim=(0, max(1, len(columns))), ylim=(max(1, len(statuses)), 0))
    numbers = [column.partition("_")[0] for column in columns]
    axes.set_xticks([x + 0.45 for x in range(len(columns))], numbers)
    axes.set_yticks([y + 0.5 for y in range(len(statuses))], [status.name for status in statuses])
    axes.tick_params(length=0, labelsize="small", colors=THEME.text)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    legend = "green: finished, blue: in progress, red: a cell failed"
    label = legend if columns else "no notebook has reported yet"
    axes.set_xlabel(label, fontsize="x-small", color=THEME.text)
    axes.set_title(title, loc="left", color=THEME.text)
    return figure
