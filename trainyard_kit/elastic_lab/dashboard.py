"""A run's live timeline, with buttons that show the call that they make, and its result.

It follows pods and logs as `run_view` does, and records their history. One thread at a time executes a
button's call, so that neither the kernel nor the picture waits for it. The static plot is in `timeline_plot`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np

from kitlib.clusters.local import LocalCluster
from kitlib.display.progress import shown_elsewhere
from kitlib.display.tables import Table, parse_time
from kitlib.display.tracebacks import Line
from kitlib.errors import KitError, plain
from kitlib.k8s.events import namespace_events
from kitlib.k8s.manifests import Object
from kitlib.runs.run import Run
from kitlib.widgets.plots import Picture
from kitlib.widgets.run_view import RunWatch, States
from kitlib.widgets.watch import UPDATE_SECONDS
from trainyard_kit.elastic_lab.timeline import RunHistory, Timeline
from trainyard_kit.elastic_lab.timeline_plot import label_of, labelled_pauses, lanes, plot_timeline, world

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView

EVENTS_SECONDS = 1.0
MAX_POINTS = 1500
HINT = "Buttons are shown in front ends such as JupyterLab; run.kill(rank=1), run.scale(4) do the same."

JOIN_SECONDS = 10
NARROW = {"width": "auto", "min_width": "5.2em"}
UNDO = {"node stopped": "start", "node isolated": "reconnect"}
NODE_CHANGES = ("node stopped", "node isolated", "node started", "node reconnected")
Replicas = Callable[[], tuple[int, int, int]]


class Dashboard(RunWatch):
    """A run's timeline with buttons; created by :meth:`kitlib.Run.dashboard`."""

    kind = "timeline"

    def __init__(
        self, run: Run, *, states: States, replicas: Replicas, cluster: LocalCluster | None = None
    ) -> None:
        super().__init__(run, states=states)
        self.launched = run
        self.replicas, self.cluster = replicas, cluster
        self.history: RunHistory = RunHistory(run.name)
        self.kube_events: list[Object] = []
        self.ended: float | None = None
        self._lines = 0
        self._timeline = Timeline(run.name)
        self._timeline_key: tuple[float, ...] = ()
        self._buttons: Buttons | None = None

    # Follow

    def _key(self, pod: Object) -> str:
        worker = pod["metadata"]["name"]
        with self.lock:
            self.history.add_worker(worker, pod["spec"].get("nodeName", ""))
        return worker

    def _take(self, lines: list[tuple[str, Line]]) -> None:
        for worker, line in lines:
            self.history.add_lines(worker, "", [line.text])
            self.ended = parse_time(line.time).timestamp()
        self._lines += len(lines)

    def _refresh_events(self, *, now: bool) -> None:
        if now or time.monotonic() - self._events_refreshed > EVENTS_SECONDS:
            self._events_refreshed = time.monotonic()
            try:
                events = namespace_events(self.run.kube)
            except KitError:  # the watch of pods reports it
                return
            with self.lock:
                self.kube_events = events

    def stop(self) -> None:
        super().stop()
        if self._buttons is not None:
            self._buttons.close()

    # Display

    def timeline(self) -> Timeline:
        """The timeline until now."""
        with self.lock:
            now = self.ended if self.over and self.ended else time.time()
            key = now // UPDATE_SECONDS, self._lines, len(self.kube_events), len(self.history.nodes)
            if key != self._timeline_key:  # an update calls this several times
                self._timeline_key, store = key, [f"{self.run.name}-store"]
                self._timeline = self.history.timeline(self.kube_events, now=now, store=store)
            return self._timeline

    def widget(self) -> ipywidgets.Widget:
        if self._buttons is None:
            self._buttons = Buttons(self.launched, self.cluster, self.view(), replicas=self.replicas)
            self._buttons.update(self.timeline(), over=self.over)
        return self._buttons.box

    def push(self, view: "LiveView") -> int:
        timeline = self.timeline()
        if self._buttons is not None:
            self._buttons.update(timeline, over=self.over or self.stopping.is_set())
        facts, tables = self.facts() | stage_of(timeline), {"changes": timeline.table()}
        return view.show(rows_of(timeline), facts=facts, tables=tables, summary=self.summary())

    def facts(self) -> dict[str, Any]:
        timeline = self.timeline()
        losses = [step.loss for step in timeline.steps if step.loss is not None]
        figures = [["world size", str(timeline.world_size)], ["rounds", str(len(timeline.rendezvous))]]
        figures += [["step", f"{timeline.step:,}"]] + [["loss", f"{loss:.4g}"] for loss in losses[-1:]]
        figures += [["steps lost", str(timeline.steps_lost)], ["repeated", str(timeline.steps_repeated)]]
        notes = [self.error] * bool(self.error) + list(timeline.gaps[-1:])
        return super().facts() | {"figures": figures, "notes": notes}

    def summary(self) -> str:
        timeline, state = self.timeline(), self.status or self.phase
        return f"Run {self.title}: {state}; {timeline.summary}, {len(timeline.rows)} changes"

    def picture(self) -> Picture:
        return plot_timeline(self.timeline())

    def table(self) -> Table:
        return self.timeline().table()

    def static_view(self) -> list[dict[str, str]]:
        return [*super().static_view(), {"text/plain": HINT}]

    def state(self) -> object:
        with self.lock:
            events, nodes = len(self.kube_events), tuple(self.history.nodes)
            return self.phase, self._lines, events, self.error, nodes


def rows_of(timeline: Timeline) -> list[tuple[str, int, np.ndarray]]:
    """Convert the steps to the browser's arrays: time in seconds, loss, and loss of repeated steps."""
    steps = [step for step in timeline.steps if step.loss is not None]
    stride = 1 + len(steps) // MAX_POINTS
    points = [step for index, step in enumerate(steps) if step.repeated or index % stride == 0]
    repeated = [step.loss if step.repeated else np.nan for step in points]
    times = [step.time - timeline.began for step in points]
    rows = {"time": times, "loss": [step.loss for step in points], "again": repeated}
    return [(name, 0, np.asarray(values, dtype=float)) for name, values in rows.items()]


def stage_of(timeline: Timeline) -> dict[str, object]:
    """The marks, rounds, pauses, lanes and world sizes to draw, in seconds from the beginning."""
    times, sizes = world(timeline)
    return {
        "length": round(max(1.0, timeline.now - timeline.began), 2),
        "marks": [[round(row.time - timeline.began, 3), label_of(row)] for row in timeline.rows],
        "rounds": [[round(rdzv.time - timeline.began, 3), rdzv.number] for rdzv in timeline.rendezvous],
        "pauses": list(map(list, labelled_pauses(timeline))),
        "lanes": [[worker, list(map(list, _rounded(spans)))] for worker, spans in lanes(timeline)],
        "world": [[round(time_, 3) for time_ in times], sizes],
    }


def _rounded(spans: list[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    return ((kind, round(begin, 2), round(end, 2)) for kind, begin, end in spans)


@dataclass(frozen=True)
class Call:
    """A call as a user would write it, and the function that makes it."""

    text: str
    execute: Callable[[], object]


class Buttons:
    """Buttons for a run's workers, their number, and the nodes."""

    def __init__(
        self, run: Run, cluster: LocalCluster | None, view: ipywidgets.DOMWidget, *, replicas: Replicas
    ) -> None:
        self.run, self.cluster, self.replicas = run, cluster, replicas
        self.status = ipywidgets.HTML("<i>The call that a button makes is shown here.</i>")
        self.workers = ipywidgets.VBox()
        self.nodes = ipywidgets.VBox()
        self.count = ipywidgets.HTML()
        self._ranks: dict[str, int] = {}
        self._worker_rows: dict[str, dict[str, ipywidgets.Widget]] = {}
        self._node_rows: dict[str, dict[str, ipywidgets.Widget]] = {}
        self._thread: threading.Thread | None = None
        self._replicas: tuple[int, int, int] = (0, 0, 0)
        self._scale_down = self._button("−", lambda: self._scale(-1), "one worker less", name="scale down")
        self._scale_up = self._button("+", lambda: self._scale(+1), "one worker more", name="scale up")
        scale = ipywidgets.HBox([self.count, self._scale_down, self._scale_up])
        left = ipywidgets.VBox([self.workers, scale])
        groups = [left, self.nodes] if cluster is not None else [left]
        layout = ipywidgets.Layout(flex_flow="row wrap", grid_gap="4px 32px")
        self.box = ipywidgets.VBox([ipywidgets.Box(groups, layout=layout), self.status, view])
        self.box.add_class("ty-lab")

    def update(self, timeline: Timeline, *, over: bool) -> None:
        """Show the current workers and nodes; disable buttons that do not apply."""
        with contextlib.suppress(KitError):  # reported in the picture
            self._replicas = self.replicas()
        busy = over or (self._thread is not None and self._thread.is_alive())
        self._show_workers(timeline, busy)
        count, least, most = self._replicas
        _set(self.count, value=f"<b>workers</b> {count or ''}&ensp;")
        _set(self._scale_down, disabled=busy or count <= least)
        _set(self._scale_up, disabled=busy or count >= most)
        if self.cluster is not None:
            self._show_nodes(timeline, busy)

    def _show_workers(self, timeline: Timeline, busy: bool) -> None:
        rank_of = {worker: rank for rank, worker in timeline.ranks.items()}
        paused_rank = {row.worker: row.rank for row in timeline.rows if row.what == "paused"}
        paused_ranks = ((worker, paused_rank.get(worker)) for worker in timeline.paused)
        self._ranks = rank_of | {worker: rank for worker, rank in paused_ranks if rank is not None}
        rows = []
        for worker, rank in sorted(self._ranks.items(), key=lambda item: (item[1], item[0])):
            parts = self._worker_rows.setdefault(worker, self._row_of_worker(worker))
            paused = worker in timeline.paused
            state = "paused" if paused else "training" if worker in rank_of else ""
            _set(parts["label"], value=f"<b>rank {rank}</b> {escape(worker)} {state}&ensp;")
            _set(parts["kill"], disabled=busy)
            _set(parts["pause"], disabled=busy or paused)
            _set(parts["resume"], disabled=busy or not paused)
            rows.append(parts["row"])
        if list(self.workers.children) != rows:
            self.workers.children = rows

    def _row_of_worker(self, worker: str) -> dict[str, ipywidgets.Widget]:
        def call(verb: str) -> Callable[[], Call]:
            def build() -> Call:
                rank = self._ranks.get(worker, 0)
                return Call(f"run.{verb}(rank={rank})", lambda: getattr(self.run, verb)(rank=rank))

            return build

        parts = {
            "label": ipywidgets.HTML(),
            "kill": self._button("kill", call("kill"), "simulate a crash", name=f"kill {worker}"),
            "pause": self._button("pause", call("pause"), "simulate a hang", name=f"pause {worker}"),
            "resume": self._button("resume", call("resume"), "end the hang", name=f"resume {worker}"),
        }
        return parts | {"row": ipywidgets.HBox(list(parts.values()))}

    def _scale(self, by: int) -> Call:
        replicas = self._replicas[0] + by
        return Call(f"run.scale({replicas})", lambda: self.run.scale(replicas))

    def _show_nodes(self, timeline: Timeline, busy: bool) -> None:
        if not self._node_rows:
            try:
                names = [node["node"] for node in self.cluster.nodes()] if self.cluster else []
            except KitError:
                return
            self._node_rows = {name: self._row_of_node(name) for name in names}
            self.nodes.children = [parts["row"] for parts in self._node_rows.values()]
        last = {row.node: row.what for row in timeline.rows if row.what in NODE_CHANGES}
        for name, parts in self._node_rows.items():
            undo = UNDO.get(last.get(name, ""))
            for verb in ("stop", "start", "isolate", "reconnect"):
                applies = verb == undo if undo or verb in ("start", "reconnect") else True
                _set(parts[verb], disabled=busy or not applies)

    def _row_of_node(self, node: str) -> dict[str, ipywidgets.Widget]:
        verbs = {"stop": "stop_node", "start": "start_node", "isolate": "isolate", "reconnect": "reconnect"}

        def call(method: str) -> Callable[[], Call]:
            return lambda: Call(f'cluster.{method}("{node}")', lambda: getattr(self.cluster, method)(node))

        parts: dict[str, ipywidgets.Widget] = {"label": ipywidgets.HTML(f"<b>{escape(node)}</b>&ensp;")}
        for verb, method in verbs.items():
            parts[verb] = self._button(verb, call(method), f"cluster.{method}", name=f"{verb} {node}")
        return parts | {"row": ipywidgets.HBox(list(parts.values()))}

    # Press

    def _button(self, text: str, call: Callable[[], Call], hint: str, *, name: str) -> ipywidgets.Button:
        layout = ipywidgets.Layout(**NARROW)
        button = ipywidgets.Button(description=text, tooltip=f"{name}: {hint}", layout=layout, disabled=True)
        button.on_click(lambda _: self._press(call()))
        return button

    def _press(self, call: Call) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self.status.value = f"<code>{escape(call.text)}</code> …"
        name = f"dashboard-{self.run.name}-press"
        self._thread = threading.Thread(target=self._execute, args=(call,), name=name, daemon=True)
        self._thread.start()

    def _execute(self, call: Call) -> None:
        with shown_elsewhere():
            try:
                result = call.execute()
                message = escape(str(result)) if isinstance(result, str) else "done"
            except KitError as error:
                fix = f" <i>{escape(plain(error.fix))}</i>" if error.fix else ""
                message = f"<b style='color:#b3001b'>{escape(error.what)}</b>{fix}"
        self.status.value = f"<code>{escape(call.text)}</code> {message}"

    def close(self) -> None:
        """Wait until the last call has returned."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)


def _set(widget: ipywidgets.Widget, **traits: object) -> None:
    """Set only traits that differ, because each change is a message to the browser."""
    for name, value in traits.items():
        if getattr(widget, name) != value:
            setattr(widget, name, value)
