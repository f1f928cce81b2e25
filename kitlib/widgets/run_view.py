"""A live view of a run: curves, pods, events, and the merged log of its workers.

One thread watches the Job and its pods, and follows the log of each pod that starts; another draws. The
metrics are in `kitlib.metrics.curves`, the static plot in `plots`.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kitlib import plugins
from kitlib.display.tables import Table
from kitlib.display.tracebacks import Line, time_key
from kitlib.errors import KitError
from kitlib.k8s import pods
from kitlib.k8s.client import Kube
from kitlib.k8s.logs import PodLogFollowers
from kitlib.k8s.manifests import Object
from kitlib.k8s.watch import Snapshot
from kitlib.metrics import events as metrics
from kitlib.metrics.curves import Curves, TrainingMetrics
from kitlib.metrics.events import Event
from kitlib.metrics.gpu_usage import GpuSample, GpuUse, combine_by
from kitlib.metrics.log_format import format_line
from kitlib.metrics.node_usage import requested_gpus
from kitlib.metrics.run_progress import RunProgress
from kitlib.widgets.gpu_reader import GpuReader
from kitlib.widgets.plots import Picture, plot_run
from kitlib.widgets.watch import Watch, rows_in

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView

LINES_SECONDS = 1.0  # log lines are most of the traffic
EVENTS_SECONDS = 3.0
GPU_SECONDS = 1.0
MAX_EVENTS = 6
MAX_LINES = 60  # sent at a time
LONGEST, LONGEST_READ = 240, 4096  # characters of a line that are shown, and that are formatted
LAST_LINES_SECONDS = 10.0  # for the last lines after the end
PODS = {"rank": 0, "pod": "", "status": "", "node": "", "restarts": 0, "why": ""}  # with defaults


GpuPods = dict[tuple[str, str], tuple[object, str]]  # rank and node, by namespace and name
States = Callable[[], Iterator[tuple[Snapshot, Any]]]


class LogTail:
    """The newest lines of all workers by time; lines of one worker keep their order."""

    def __init__(self) -> None:
        self.lines: list[tuple[int | str, Line]] = []
        self.total: int = 0

    def add(self, lines: Iterable[tuple[int | str, Line]]) -> None:
        """Add lines with their ranks; those of one rank in order."""
        new = [(rank, replace(line, text=line.text[:LONGEST_READ])) for rank, line in lines]
        self.total += len(new)
        self.lines += new
        self.lines.sort(key=lambda line: time_key(line[1].time))  # stable for equal times
        del self.lines[:-MAX_LINES]

    def rows(self) -> list[list[object]]:
        """Format the lines: rank, time of day in UTC, and text, truncated if it is long."""
        return [[rank, line.time[11:19], _readable(line.text, rank)] for rank, line in self.lines]


def _readable(text: str, rank: int | str) -> str:
    formatted = format_line(text, pod=pods.display_name(rank))
    return formatted if len(formatted) <= LONGEST else f"{formatted[: LONGEST - 1]}…"


class WatchedStatus(Protocol):
    """The part of a run's status that its view reads: the layer of runs is above that of widgets."""

    @property
    def finished(self) -> bool: ...


class WatchedRun(Protocol):
    """The interface of `kitlib.Run` that its view uses: the layer of runs is above that of widgets."""

    @property
    def name(self) -> str: ...

    @property
    def kube(self) -> Kube: ...

    @property
    def status(self) -> WatchedStatus: ...

    def events(self) -> Table: ...

    def pods(self) -> Table: ...


class RunWatch(Watch):
    """A live view of a run; created by :meth:`kitlib.Run.watch`."""

    kind = "run"

    def __init__(self, run: WatchedRun, *, states: States) -> None:
        super().__init__(run.name)
        self.run, self.states = run, states
        self.began: float = time.time()
        self.ended: float | None = None
        self.training: TrainingMetrics = TrainingMetrics()
        self.progress: RunProgress = RunProgress()
        self._texts: dict[object, Any] | None = {}  # None after the first event of a trainer
        self.log_tail: LogTail = LogTail()
        self._gpus = GpuReader(run.kube)
        self._gpu_pods: GpuPods = {}
        self._gpu_use: Mapping[object, GpuUse] = {}  # by rank
        self.phase, self.status = "Pending", ""
        self.pods: list[list[object]] = []
        self.events: list[list[object]] = []
        self.logs: PodLogFollowers = PodLogFollowers(run.kube)
        self._run_finished = False
        self._events_refreshed = self._sent_lines = 0.0

    # Follow

    def work(self) -> dict[str, Callable[[], None]]:
        return {"pods": self._follow, "gpus": self._follow_gpus, "draw": self._draw}

    def _follow(self) -> None:
        try:
            for snapshot, status in self.states():
                with self.lock:
                    self.phase, self.status = status.phase, str(status)
                    if snapshot["Pod"] or not status.finished:  # keep showing the pods of a deleted run
                        self.pods = rows_in(PODS, pods.table(snapshot["Pod"].values()))
                self._gpu_pods = self._gpu_pods_of(snapshot["Pod"].values())
                for pod in snapshot["Pod"].values():
                    key = self._key(pod)
                    if pods.started(pod):
                        self.logs.follow(pod, key)
                self._refresh_events(now=status.finished)
                if status.phase == "Succeeded" and not all(map(pods.finished, snapshot["Pod"].values())):
                    # The run's end may be reported before that of its pods, which are watched separately.
                    self.pods = rows_in(PODS, self.run.pods()) or self.pods
                if status.finished or self.stopping.is_set():
                    self._run_finished = status.finished
                    break
        except KitError as error:
            self.error: str = error.what
        self._end_logs()
        self.over = self._run_finished or bool(self.error)
        self.ended = time.time()
        self.stopping.set()

    def _gpu_pods_of(self, running: Iterable[Object]) -> GpuPods:
        return {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): (self._key(pod), pod["spec"]["nodeName"])
            for pod in running
            if any(requested_gpus([pod]).values())
        }

    def _follow_gpus(self) -> None:
        """Read the GPU usage of the pods, regardless of what their programs log."""
        while not self.stopping.wait(GPU_SECONDS):
            ranks = dict(self._gpu_pods)
            if ranks:
                self._update_gpus(ranks, self._gpus.read({node for _, node in ranks.values()}))

    def _update_gpus(self, ranks: GpuPods, read: Mapping[str, list[GpuSample]]) -> None:
        samples = [sample for samples in read.values() for sample in samples if sample.pod_key in ranks]
        use = combine_by(samples, lambda sample: ranks[sample.pod_key][0])
        with self.lock:
            self._gpu_use = use

    def _key(self, pod: Object) -> object:
        return pods.replica_id(pod)

    def _refresh_events(self, *, now: bool) -> None:
        if now or time.monotonic() - self._events_refreshed > EVENTS_SECONDS:
            self._events_refreshed = time.monotonic()
            try:
                newest = [list(event.values()) for event in self.run.events()][-MAX_EVENTS:]
            except KitError:  # the watch of pods reports it
                return
            with self.lock:
                self.events = [  # without their age, which changes
                    [kind, f"{reason} {about}", message]
                    for _, kind, reason, about, message in reversed(newest)
                ]

    def _end_logs(self) -> None:
        """Wait for the last lines of a finished run; then stop following its logs."""
        deadline = time.monotonic() + LAST_LINES_SECONDS
        while self._run_finished and self.logs.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.logs.close()

    def collect(self) -> None:
        with self.lock:
            self._take(self.logs.drain())

    def _take(self, lines: list[tuple[Any, Line]]) -> None:
        self.log_tail.add(lines)
        for key, line in lines:
            event = metrics.parse_line(line.text)
            if event is not None and self._texts is not None:
                self._texts, self.training, self.progress = None, TrainingMetrics(), RunProgress()
            for reported in [event] if event is not None else self._losses(key, line):
                self.training.add(self._with_gpu(reported, key))
                self.progress.add(reported)

    def _with_gpu(self, event: Event, key: object) -> Event:
        """Add the pod's GPU usage to a ``step`` event that does not report it."""
        if event.event != "step" or key not in self._gpu_use or "gpu_percent" in event.fields:
            return event
        return replace(event, fields=event.fields | {"gpu_percent": self._gpu_use[key].percent})

    def _losses(self, key: object, line: Line) -> Iterable[Event]:
        """Read the losses of a program that logs no events; the rank is the pod's index."""
        if self._texts is None:
            return []
        number = key if isinstance(key, int) else len(self._texts)
        reader = self._texts.setdefault(key, plugins.find("kitlib.output", "reader")(number))
        return list(reader.read(line, world=len(self._texts)))

    def catch_up(self) -> None:
        try:
            finished = self.finished or self.run.status.finished
        except KitError:
            finished = True
        if finished:
            self.join()

    # Display

    def push(self, view: "LiveView") -> int:
        with self.lock:
            frame = self.training.frame()
            traits: dict[str, Any] = {
                "facts": self.facts() | self._position(),
                "tables": self._tables(),
                "summary": self.summary(),
            }
            now = time.monotonic()
            if now - self._sent_lines > LINES_SECONDS or self.over:
                self._sent_lines, traits["lines"] = now, self.log_tail.rows()
        return view.show(rows_of(frame), **traits)

    def facts(self) -> dict[str, Any]:
        """Facts for the view: title, phase, and values with their units."""
        training, figures = self.training, []
        if training.last_step is not None:
            _, loss = training.first_and_last_loss()
            figures += [["step", f"{training.last_step:,}"], ["loss", f"{loss:.4g}"]]
            rates = [row[4] for row in training.latest() if row[0] < max(1, training.world_size)]
            if np.isfinite(rates).any():
                figures.append(["images/s", f"{np.nansum(rates):,.0f}"])
        if self._gpu_use:
            percent = np.mean([use.percent for use in self._gpu_use.values()])
            gibibytes = max(use.used for use in self._gpu_use.values()) / 2**30
            figures += [["GPU", f"{percent:.0f} %"], ["GPU memory", f"{gibibytes:.1f} GiB"]]
        if training.world_size:
            figures.append(["world size", str(training.world_size)])
        if training.accuracy is not None:
            figures.append(["accuracy", f"{training.accuracy:.2%}"])
        notes = ["synthetic data"] * training.synthetic + [self.error] * bool(self.error)
        return {
            "title": self.title,
            "about": f'run "{self.title}" in cluster "{self.run.kube.cluster}"',
            "phase": self.phase,
            "figures": figures,
            "notes": notes,
            "finished": self.over,
            "names": {rank: pods.display_name(training.replica(rank)) for rank in training.ranks},
        }

    def _position(self) -> dict[str, Any]:
        """The run's progress, for the live view only, because it changes each second."""
        done, total, unit = self.progress.position
        known = self.progress.began and total
        seconds = (self.ended or time.time()) - self.began
        return {
            "share": min(1.0, done / total) if known and total else None,
            "position": f"{self.progress.share}, {seconds:.0f} s" if known else f"{seconds:.0f} s",
        }

    def _tables(self) -> dict[str, Table]:
        latest = [
            [self.training.replica(rank), step, *map(_format, values)]
            for rank, step, *values in self.training.latest()
        ]
        epochs = [
            [number, _format(epoch.mean_loss), _format(sum(epoch.rate.values()) or math.nan), epoch.accuracy]
            for number, epoch in sorted(self.training.epochs.items())
        ]
        epoch_columns = ("epoch", "mean loss", "images/s", "accuracy")
        return {
            "pods": Table(tuple(PODS), self.pods, empty="no pods yet"),
            "events": Table(("type", "what", "message"), self.events, empty="no events"),
            "latest": Table(("rank", "step", "loss", "smoothed", "images/s"), latest, empty="no steps yet"),
            "epochs": Table(epoch_columns, epochs, empty="no epoch has ended"),
        }

    def summary(self) -> str:
        """Describe the run in one line."""
        figures = ", ".join(f"{name} {value}" for name, value in self.facts()["figures"])
        return f"Run {self.title}: {self.status or self.phase}" + (f"; {figures}" if figures else "")

    def picture(self) -> Picture:
        with self.lock:
            return plot_run(self.training, title=self.title, alt=self.summary())

    def table(self) -> Table:
        with self.lock:
            return self._tables()["pods"]

    def state(self) -> object:
        with self.lock:
            return self.phase, self.log_tail.total, repr(self.pods), self.error

    def __repr__(self) -> str:
        with self.lock:
            return self.summary()


def rows_of(frame: Curves) -> list[tuple[str, int, np.ndarray]]:
    """Convert a frame to rows for the browser: name, rank, values; the steps first."""
    series = {"step": frame.steps, "smooth": frame.smooth, "rate": frame.rate, "world": frame.world}
    rows = [(name, 0, values) for name, values in series.items()]
    rows += [("validation", 0, frame.validation)] if np.isfinite(frame.validation).any() else []
    rows += [("loss", rank, values) for rank, values in zip(frame.ranks, frame.loss, strict=True)]
    return rows + [("gpu", rank, values) for rank, values in zip(frame.ranks, frame.gpu, strict=False)]


def _format(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
