"""A run, watched: its curves, its pods, what was said about it and what its workers write.

One thread follows Job and pods and begins to follow each pod's log when it has started, so ranks may come and
go while it watches; another draws. A log that is cut is taken up where it was. The figures are in `training`,
the lines in `journal`, the static picture in `run_picture`.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kitlib.display.tables import Table
from kitlib.display.tracebacks import Line
from kitlib.errors import KitError
from kitlib.k8s import logs, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.job_status import RunStatus
from kitlib.k8s.manifests import Object
from kitlib.k8s.watch import Snapshot
from kitlib.metrics import events as metrics
from kitlib.metrics.training import Frame, TrainingMetrics
from kitlib.widgets import run_picture
from kitlib.widgets.log_tail import Journal
from kitlib.widgets.picture import Picture
from kitlib.widgets.watch import Watch

if TYPE_CHECKING:
    from kitlib.widgets.widget import LiveView

LINES_SECONDS = 1.0  # the log is most of what is sent, and nobody reads it faster
EVENTS_SECONDS = 3.0
MOST_EVENTS = 6
REST_SECONDS = 10.0  # for the last lines, after the end
PODS = ("rank", "pod", "phase", "node", "restarts", "why")


class Followed(Protocol):
    """What a watch needs of a run: `kitlib.runs.run` imports this module, not the other way round."""

    kube: Kube
    name: str

    @property
    def status(self) -> RunStatus: ...
    def events(self) -> Table: ...
    def _watched(self) -> Iterator[Snapshot]: ...
    def _judged(self, seen: Snapshot) -> RunStatus: ...


class RunWatch(Watch):
    """A run as it goes; made by :meth:`kitlib.Run.watch`."""

    kind = "run"

    def __init__(self, run: Followed) -> None:
        super().__init__(run.name)
        self.run = run
        self.began = time.time()
        self.training = TrainingMetrics()
        self.journal = Journal()
        self.phase, self.words = "Pending", ""
        self.pods: list[list[object]] = []
        self.events: list[list[object]] = []
        self._followers = logs.Followers()
        self._followed: dict[str, logs.Follower] = {}  # by the pods' uids
        self._places: dict[str, logs.Place] = {}
        self._seen_finished = False
        self._asked_events = self._sent_lines = 0.0

    # Following

    def work(self) -> dict[str, Callable[[], None]]:
        return {"pods": self._follow, "draw": self._draw}

    def _follow(self) -> None:
        try:
            for seen in self.run._watched():
                status = self.run._judged(seen)
                with self.lock:
                    self.phase, self.words = status.phase, str(status)
                    if (
                        seen["Pod"] or not status.finished
                    ):  # the pods of a run that was deleted stay to be seen
                        self.pods = _pods_rows(seen["Pod"].values())
                self._follow_logs(seen["Pod"].values())
                self._ask_events(now=status.finished)
                if status.finished or self.stopping.is_set():
                    self._seen_finished = status.finished
                    break
        except KitError as error:
            self.trouble = error.what
        self._end_logs()
        self.over = self._seen_finished or bool(self.trouble)
        self.stopping.set()

    def _follow_logs(self, seen) -> None:
        for pod in seen:
            uid = pod["metadata"]["uid"]
            if uid not in self._followed and pods.started(pod):
                place = self._places.setdefault(uid, logs.Place())
                ended = partial(logs.written, self.run.kube, pod)
                follower = self._followed[uid] = logs.Follower(self.run.kube, pod, ended, place)
                self._followers.add(self._known_as(pod), follower)

    def _known_as(self, pod: Object) -> object:
        """Return by what the lines of a pod are known."""
        return pods.replica_id(pod)

    def _ask_events(self, *, now: bool) -> None:
        if now or time.monotonic() - self._asked_events > EVENTS_SECONDS:
            self._asked_events = time.monotonic()
            try:
                newest = [list(each.values()) for each in self.run.events()][-MOST_EVENTS:]
            except KitError:  # the pods' watch tells what is wrong with the API
                return
            with self.lock:
                self.events = [  # without their age, which would change
                    [kind, f"{reason} {about}", words] for _, kind, reason, about, words in reversed(newest)
                ]

    def _end_logs(self) -> None:
        """Wait for the last lines of a run that has ended; then let the logs be."""
        end = time.monotonic() + REST_SECONDS
        while self._seen_finished and self._followers.alive() and time.monotonic() < end:
            time.sleep(0.05)
        self._followers.close()
        self._followed = {}

    def _complete(self) -> bool:
        return False  # the other thread says so, when the logs have been read to their ends

    def _collect(self) -> None:
        lines, failed = self._followers.drain()
        with self.lock:
            self._take(lines)
        for follower, _ in failed:  # begun again with the next look at its pod, where it was
            self._followed = {uid: each for uid, each in self._followed.items() if each is not follower}

    def _take(self, lines: list[tuple[Any, Line]]) -> None:
        self.journal.add(lines)
        for _, line in lines:
            event = metrics.parse_line(line.text)
            if event is not None:
                self.training.add(event)

    def catch_up(self) -> None:
        try:
            ended = self.finished or self.run.status.finished
        except KitError:
            ended = True
        if ended:
            self.join()

    # Showing

    def push(self, view: "LiveView") -> int:
        with self.lock:
            frame = self.training.frame()
            traits = {"facts": self.facts(), "tables": self._tables(), "summary": self.summary()}
            now = time.monotonic()
            if now - self._sent_lines > LINES_SECONDS or self.over:
                self._sent_lines, traits["lines"] = now, self.journal.rows()
        return view.show(rows_of(frame), **traits)

    def facts(self) -> dict[str, object]:
        """Return what is said in words: title, phase, and figures with their units."""
        training, figures = self.training, []
        if training.last_step is not None:
            _, loss = training.first_and_last_loss()
            figures += [["step", f"{training.last_step:,}"], ["loss", f"{loss:.4g}"]]
            rates = [row[4] for row in training.latest() if row[0] < max(1, training.world_size)]
            if np.isfinite(rates).any():
                figures.append(["images/s", f"{np.nansum(rates):,.0f}"])
        if training.world_size:
            figures.append(["world size", str(training.world_size)])
        if training.accuracy is not None:
            figures.append(["accuracy", f"{training.accuracy:.2%}"])
        notes = ["synthetic data"] * training.synthetic + [self.trouble] * bool(self.trouble)
        return {
            "title": self.title,
            "about": f'run "{self.title}" in cluster "{self.run.kube.cluster}"',
            "phase": self.phase,
            "words": self.words,
            "figures": figures,
            "notes": notes,
            "finished": self.over,
        }

    def _tables(self) -> dict[str, object]:
        latest = [[row[0], row[1], *(_shown(each) for each in row[2:])] for row in self.training.latest()]
        epochs = [
            [number, _shown(each.mean_loss), _shown(sum(each.rate.values()) or float("nan")), each.accuracy]
            for number, each in sorted(self.training.epochs.items())
        ]
        return {"pods": self.pods, "events": self.events, "latest": latest, "epochs": epochs}

    def summary(self) -> str:
        """Return what is to be seen, in a sentence."""
        figures = ", ".join(f"{name} {value}" for name, value in self.facts()["figures"])
        return f"Run {self.title}: {self.words or self.phase}" + (f"; {figures}" if figures else "")

    def picture(self) -> Picture:
        with self.lock:
            figure = run_picture.draw(self.training, title=self.title)
            return Picture(figure, self.summary())

    def still(self) -> list[dict[str, str]]:
        with self.lock:
            table = Table(PODS, self.pods, empty="no pods yet")
        return [self.picture().bundle(), {"text/plain": repr(table), "text/html": table._repr_html_()}]

    def state(self) -> object:
        with self.lock:
            return self.phase, self.journal.total, repr(self.pods), self.trouble

    def __repr__(self) -> str:
        with self.lock:
            return self.summary()


def rows_of(frame: Frame) -> list[tuple[str, int, np.ndarray]]:
    """Return a frame as the rows that the browser gets: name, rank, values; the steps first."""
    rows = [
        ("step", 0, frame.steps),
        ("smooth", 0, frame.smooth),
        ("rate", 0, frame.rate),
        ("world", 0, frame.world),
    ]
    rows += [("loss", rank, values) for rank, values in zip(frame.ranks, frame.loss, strict=True)]
    return rows + [("gpu", rank, values) for rank, values in zip(frame.ranks, frame.gpu, strict=False)]


def _pods_rows(seen) -> list[list[object]]:
    """Return the pods' rows, in the columns of :data:`PODS`."""
    table = pods.table(seen)
    return [
        [
            each.get("rank", 0),
            each["pod"],
            each["status"],
            each["node"] or "",
            each["restarts"],
            each.get("why", ""),
        ]
        for each in table
    ]


def _shown(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
