"""The elasticity lab: a run's timeline as it goes, and buttons that do what its calls do.

It follows pods and logs as `run_watch` does, and keeps what it hears as a history, of which the timeline is
made anew for each look. The buttons are in `lab_buttons`, the static picture in `timeline_picture`.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kitlib.display.tables import parse_time
from kitlib.display.tracebacks import Line
from kitlib.errors import KitError
from kitlib.k8s.manifests import Object
from kitlib.metrics.history import History
from kitlib.metrics.timeline import Timeline
from kitlib.widgets import timeline_picture
from kitlib.widgets.picture import Picture
from kitlib.widgets.run_watch import RunWatch
from kitlib.widgets.timeline_marks import label_of, lanes, pauses, world
from kitlib.widgets.watch import UPDATE_SECONDS

if TYPE_CHECKING:
    from ipywidgets import Widget

    from kitlib.widgets.dashboard_buttons import Buttons
    from kitlib.widgets.widget import LiveView

ASK_SECONDS = 1.0
MOST_POINTS = 1500
HINT = "The buttons are in front ends such as JupyterLab; run.kill(rank=1), run.scale(4) do the same."


class Lab(RunWatch):
    """A run's timeline with buttons; made by :meth:`kitlib.Run.lab`.

    Args:
        run: The run.
        cluster: Whose nodes the buttons switch; None if they are not the kit's to switch.
    """

    kind = "timeline"

    def __init__(self, run: Any, *, cluster: Any = None) -> None:
        super().__init__(run)
        self.cluster = cluster
        self.history = History(run.name)
        self.told: list[Object] = []
        self.ended: float | None = None
        self._heard = 0
        self._made, self._made_of = Timeline(run.name), ()
        self._buttons: Buttons | None = None

    # Following

    def _known_as(self, pod: Object) -> str:
        worker = pod["metadata"]["name"]
        with self.lock:
            self.history.add_worker(worker, pod["spec"].get("nodeName", ""))
        return worker

    def _take(self, lines: list[tuple[str, Line]]) -> None:
        for worker, line in lines:
            self.history.add_lines(worker, "", [line.text])
            self.ended = parse_time(line.time).timestamp()
        self._heard += len(lines)

    def _ask_events(self, *, now: bool) -> None:
        if now or time.monotonic() - self._asked_events > ASK_SECONDS:
            self._asked_events = time.monotonic()
            try:
                told = self.run.namespace_events()
            except KitError:  # the pods' watch tells what is wrong with the API
                return
            with self.lock:
                self.told = told

    def stop(self) -> None:
        super().stop()
        if self._buttons is not None:
            self._buttons.close()

    # Showing

    def timeline(self) -> Timeline:
        """Return the timeline until now, as far as it was followed."""
        with self.lock:
            now = self.ended if self.over and self.ended else time.time()
            known = now // UPDATE_SECONDS, self._heard, len(self.told), len(self.history.nodes)
            if known != self._made_of:  # one look asks for it several times
                self._made_of = known
                self._made = self.history.timeline(self.told, now=now, store=[f"{self.run.name}-store"])
            return self._made

    def widget(self) -> "Widget":
        if self._buttons is None:
            from kitlib.widgets.dashboard_buttons import Buttons  # ipywidgets takes a while

            self._buttons = Buttons(self.run, self.cluster, self.view())
            self._buttons.update(self.timeline(), over=self.over)
        return self._buttons.box

    def push(self, view: "LiveView") -> int:
        timeline = self.timeline()
        if self._buttons is not None:
            self._buttons.update(timeline, over=self.over or self.stopping.is_set())
        frame, tables = rows_of(timeline), tables_of(timeline)
        return view.show(frame, facts=self.facts(), tables=tables, summary=self.summary())

    def facts(self) -> dict[str, object]:
        timeline = self.timeline()
        losses = [each.loss for each in timeline.steps if each.loss is not None]
        figures = [["world size", str(timeline.world_size)], ["rounds", str(len(timeline.rounds))]]
        figures += [["step", f"{timeline.step:,}"]] + [["loss", f"{each:.4g}"] for each in losses[-1:]]
        figures += [["steps lost", str(timeline.steps_lost)], ["repeated", str(timeline.steps_repeated)]]
        notes = [self.trouble] * bool(self.trouble) + list(timeline.gaps[-1:])
        return super().facts() | {"figures": figures, "notes": notes}

    def summary(self) -> str:
        timeline = self.timeline()
        return f"Run {self.title}: {self.words or self.phase}; {timeline.words}, {len(timeline.rows)} changes"

    def picture(self) -> Picture:
        return timeline_picture.picture(self.timeline())

    def still(self) -> list[dict[str, str]]:
        table = self.timeline().table()
        words = {"text/plain": repr(table), "text/html": table._repr_html_()}
        return [self.picture().bundle(), words, {"text/plain": HINT}]

    def state(self) -> object:
        with self.lock:
            return self.phase, self._heard, len(self.told), self.trouble, tuple(self.history.nodes)


def rows_of(timeline: Timeline) -> list[tuple[str, int, np.ndarray]]:
    """Return the steps as rows for the browser: seconds, loss, and that again where a step was repeated."""
    steps = [each for each in timeline.steps if each.loss is not None]
    thin = 1 + len(steps) // MOST_POINTS
    kept = [each for index, each in enumerate(steps) if each.repeated or index % thin == 0]
    again = [each.loss if each.repeated else np.nan for each in kept]
    times = [each.time - timeline.began for each in kept]
    rows = {"time": times, "loss": [each.loss for each in kept], "again": again}
    return [(name, 0, np.asarray(values, dtype=float)) for name, values in rows.items()]


def tables_of(timeline: Timeline) -> dict[str, object]:
    """Return the rest of a timeline as the browser gets it, times in seconds from its beginning."""
    times, sizes = world(timeline)
    return {
        "length": round(max(1.0, timeline.now - timeline.began), 2),
        "columns": list(timeline.table().columns),
        "changes": list(timeline.table().rows),
        "marks": [[round(row.time - timeline.began, 3), label_of(row)] for row in timeline.rows],
        "rounds": [[round(each.time - timeline.began, 3), each.number] for each in timeline.rounds],
        "pauses": list(map(list, pauses(timeline))),
        "lanes": [[worker, list(map(list, _rounded(spans)))] for worker, spans in lanes(timeline)],
        "world": [[round(each, 3) for each in times], sizes],
    }


def _rounded(spans: list[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    return ((kind, round(begin, 2), round(end, 2)) for kind, begin, end in spans)
