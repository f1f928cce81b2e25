"""The buttons of the lab: each does the call that is shown, and says what came of it.

A press is carried out by a thread of its own, one at a time, so neither the kernel nor the picture waits for
it. Buttons that make no sense now are disabled.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets

from kitlib.display.progress import shown_elsewhere
from kitlib.errors import KitError
from kitlib.k8s import job_kinds
from kitlib.metrics.timeline import Timeline

JOIN_SECONDS = 10
NARROW = {"width": "auto", "min_width": "5.2em"}
NODE_AFTER = {
    "node stopped": "start",
    "node isolated": "reconnect",
}  # what undoes the last thing that was done to a node
DONE = ("node stopped", "node isolated", "node started", "node reconnected")


@dataclass(frozen=True)
class Call:
    """A call as one would write it, and the same to be carried out."""

    words: str
    do: Callable[[], object]


class Buttons:
    """Buttons for a run's workers, their number, and the nodes.

    Args:
        run: The run.
        cluster: Whose nodes are switched; None for no such buttons.
        view: What is shown below them.

    Attributes:
        box: The widget.
    """

    def __init__(self, run: Any, cluster: Any, view: ipywidgets.DOMWidget) -> None:
        self.run, self.cluster = run, cluster
        self.said = ipywidgets.HTML("<i>A button does the call that is then shown here.</i>")
        self.workers = ipywidgets.VBox()
        self.nodes = ipywidgets.VBox()
        self.count = ipywidgets.HTML()
        self._ranks: dict[str, int] = {}
        self._of_worker: dict[str, dict[str, ipywidgets.Widget]] = {}
        self._of_node: dict[str, dict[str, ipywidgets.Widget]] = {}
        self._thread: threading.Thread | None = None
        self._wanted: tuple[int, int, int] = (0, 0, 0)
        self._fewer = self._button("−", lambda: self._scale(-1), "one worker less", name="scale down")
        self._more = self._button("+", lambda: self._scale(+1), "one worker more", name="scale up")
        scale = ipywidgets.HBox([self.count, self._fewer, self._more])
        left = ipywidgets.VBox([self.workers, scale])
        groups = [left, self.nodes] if cluster is not None else [left]
        layout = ipywidgets.Layout(flex_flow="row wrap", grid_gap="4px 32px")
        self.box = ipywidgets.VBox([ipywidgets.Box(groups, layout=layout), self.said, view])
        self.box.add_class("ty-lab")

    # What can be pressed now

    def update(self, timeline: Timeline, *, over: bool) -> None:
        """Bring the buttons to what is so now."""
        self._know_limits()
        busy = over or (self._thread is not None and self._thread.is_alive())
        self._show_workers(timeline, busy)
        least = self._wanted[0] <= self._wanted[1]
        most = self._wanted[0] >= self._wanted[2]
        _set(self.count, value=f"<b>workers</b> {self._wanted[0] or ''}&ensp;")
        _set(self._fewer, disabled=busy or least)
        _set(self._more, disabled=busy or most)
        if self.cluster is not None:
            self._show_nodes(timeline, busy)

    def _know_limits(self) -> None:
        try:
            self._wanted = job_kinds.limits(self.run._main())
        except KitError:  # it is gone, or the cluster does not answer: the picture says so
            return

    def _show_workers(self, timeline: Timeline, busy: bool) -> None:
        there = {worker: rank for rank, worker in timeline.ranks.items()}
        hanging = {row.worker: row.rank for row in timeline.rows if row.what == "paused"}
        shown = there | {each: hanging[each] for each in timeline.paused if hanging.get(each) is not None}
        self._ranks = shown
        rows = []
        for worker in sorted(shown, key=lambda each: (shown[each], each)):
            parts = self._of_worker.setdefault(worker, self._row_of_worker(worker))
            paused = worker in timeline.paused
            words = "hangs" if paused else "trains" if worker in there else ""
            _set(parts["label"], value=f"<b>rank {shown[worker]}</b> {escape(worker)} {words}&ensp;")
            _set(parts["kill"], disabled=busy)
            _set(parts["pause"], disabled=busy or paused)
            _set(parts["resume"], disabled=busy or not paused)
            rows.append(parts["row"])
        if list(self.workers.children) != rows:
            self.workers.children = rows

    def _row_of_worker(self, worker: str) -> dict[str, ipywidgets.Widget]:
        def call(verb: str) -> Callable[[], Call]:
            def made() -> Call:
                rank = self._ranks.get(worker, 0)
                return Call(f"run.{verb}(rank={rank})", lambda: getattr(self.run, verb)(rank=rank))

            return made

        parts = {
            "label": ipywidgets.HTML(),
            "kill": self._button("kill", call("kill"), "as a crash would", name=f"kill {worker}"),
            "pause": self._button("pause", call("pause"), "it hangs", name=f"pause {worker}"),
            "resume": self._button("resume", call("resume"), "it hangs no more", name=f"resume {worker}"),
        }
        return parts | {"row": ipywidgets.HBox(list(parts.values()))}

    def _scale(self, by: int) -> Call:
        wanted = self._wanted[0] + by
        return Call(f"run.scale({wanted})", lambda: self.run.scale(wanted))

    def _show_nodes(self, timeline: Timeline, busy: bool) -> None:
        if not self._of_node:
            try:
                names = [each["node"] for each in self.cluster.nodes()]
            except KitError:
                return
            self._of_node = {name: self._row_of_node(name) for name in names}
            self.nodes.children = [parts["row"] for parts in self._of_node.values()]
        last = {row.node: row.what for row in timeline.rows if row.what in DONE}
        for name, parts in self._of_node.items():
            undo = NODE_AFTER.get(last.get(name, ""))
            for verb in ("stop", "start", "isolate", "reconnect"):
                makes_sense = verb == undo if undo or verb in ("start", "reconnect") else True
                _set(parts[verb], disabled=busy or not makes_sense)

    def _row_of_node(self, node: str) -> dict[str, ipywidgets.Widget]:
        verbs = {"stop": "stop_node", "start": "start_node", "isolate": "isolate", "reconnect": "reconnect"}

        def call(method: str) -> Callable[[], Call]:
            return lambda: Call(f'cluster.{method}("{node}")', lambda: getattr(self.cluster, method)(node))

        parts: dict[str, ipywidgets.Widget] = {"label": ipywidgets.HTML(f"<b>{escape(node)}</b>&ensp;")}
        for verb, method in verbs.items():
            parts[verb] = self._button(verb, call(method), f"cluster.{method}", name=f"{verb} {node}")
        return parts | {"row": ipywidgets.HBox(list(parts.values()))}

    # Pressing

    def _button(self, text: str, call: Callable[[], Call], hint: str, *, name: str) -> ipywidgets.Button:
        layout = ipywidgets.Layout(**NARROW)
        made = ipywidgets.Button(description=text, tooltip=f"{name}: {hint}", layout=layout, disabled=True)
        made.on_click(lambda _: self._press(call()))
        return made

    def _press(self, call: Call) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self.said.value = f"<code>{escape(call.words)}</code> …"
        name = f"lab-{self.run.name}-press"
        self._thread = threading.Thread(target=self._carry_out, args=(call,), name=name, daemon=True)
        self._thread.start()

    def _carry_out(self, call: Call) -> None:
        with shown_elsewhere():
            try:
                came = call.do()
                words = escape(str(came)) if isinstance(came, str) else "done"
            except KitError as error:
                fix = f" <i>{escape(error.fix)}</i>" if error.fix else ""
                words = f"<b style='color:#b3001b'>{escape(error.what)}</b>{fix}"
        self.said.value = f"<code>{escape(call.words)}</code> {words}"

    def close(self) -> None:
        """Wait until what was pressed last has been carried out."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)


def _set(widget: ipywidgets.Widget, **traits: object) -> None:
    """Change what differs: each change is a message to the browser."""
    for name, value in traits.items():
        if getattr(widget, name) != value:
            setattr(widget, name, value)
