"""Watches: objects that follow something in threads of their own, and show it as text, a picture, or live.

The kernel stays free meanwhile. `run_view`, `cluster_view`, `placement` and `dashboard` say what is followed
and how it looks; `display` shows a watch in a notebook.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kitlib.display.progress import in_notebook
from kitlib.display.tables import Table
from kitlib.errors import KitError
from kitlib.k8s.client import Kube
from kitlib.k8s.logs import PodLogFollowers
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.widgets.display import NotebookDisplay
from kitlib.widgets.plots import Picture

if TYPE_CHECKING:
    from ipywidgets import Widget

    from kitlib.widgets.widget import LiveView

UPDATE_SECONDS = 0.25  # four updates a second at most
BYTES_PER_SECOND = 32_000  # of what is drawn: larger frames come less often
STILL_SECONDS = 1.0  # while nothing changes, for what was held back
CLOSED_SECONDS = 10.0  # a page that is loaded again opens its views anew within this time
END_SECONDS = 10.0


class Watch(AbstractContextManager["Watch"], ABC):
    """Something that is followed until it ends, is stopped, or has no viewer any more.

    As a context manager it is stopped at the end.
    """

    kind = "run"
    is_live = True  # whether there is a widget where a front end shows it; else its picture follows each cell
    over: bool = False  # whether what is followed has come to its end, so that there is nothing to go on with

    def __init__(self, title: str) -> None:
        self.title = title
        self.trouble: str = ""
        self.lock = threading.RLock()  # of what is followed: drawn by one thread, shown by another
        self.stopping: threading.Event = threading.Event()
        self._ended = threading.Event()
        self._stopped = False  # by `stop`, and not because no view is open
        self._then: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._view: LiveView | None = None
        self._open_views: set[str] = set()
        self._closed_since: float | None = None

    # Life cycle

    def start(self) -> Self:
        """Start, or go on after a stop; one that runs or has seen the end stays as it is."""
        self._stopped = False
        if self.stopping.is_set():
            self.join()
        if not self._threads and not self.over:
            self.stopping.clear()
            self._ended.clear()
            self._threads = [
                threading.Thread(
                    target=self._run, args=(work,), name=f"watch-{self.title}-{name}", daemon=True
                )
                for name, work in self.work().items()
            ]
            self._working = len(self._threads)
            for thread in self._threads:
                thread.start()
        return self

    def stop(self) -> None:
        """Stop until `start`, also where it is displayed again; join the threads. May be called twice."""
        self._stopped = True
        self.stopping.set()
        self.join()

    def _resume(self) -> None:
        """Start for a viewer, unless it was stopped."""
        if not self._stopped:
            self.start()

    def join(self, timeout: float = END_SECONDS) -> None:
        """Wait until it has ended by itself, for so many seconds at most."""
        end = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    @property
    def finished(self) -> bool:
        """Whether all its threads have ended."""
        return self._ended.is_set()

    def when_finished(self, call: Callable[[], None]) -> None:
        """Call this, from one of its threads, when it has ended."""
        self._then.append(call)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self.lock:
                self._working -= 1
                last = not self._working
            if last:
                self._threads = []
                self._ended.set()
                for call in self._then:
                    call()

    # What a subclass says

    @abstractmethod
    def work(self) -> dict[str, Callable[[], None]]:
        """Functions for its threads, by name; each returns when `stopping` is set."""

    @abstractmethod
    def push(self, view: "LiveView") -> int:
        """Update the widget; returns the approximate number of bytes sent."""

    @abstractmethod
    def picture(self) -> Picture:
        """Plot the present state."""

    @abstractmethod
    def table(self) -> Table:
        """Tabulate the present state."""

    def static_view(self) -> list[dict[str, str]]:
        """MIME bundles for a front end without widgets: picture, then table."""
        table = self.table()
        return [self.picture().bundle(), {"text/plain": repr(table), "text/html": table._repr_html_()}]

    @abstractmethod
    def state(self) -> object:
        """A value that changes when the picture would."""

    def catch_up(self) -> None:
        """Wait a moment for the end, if what is followed has ended already."""

    def collect(self) -> None:
        """Take in the log lines that have arrived."""

    # Display

    def view(self) -> "LiveView":
        """The live view, created when it is first asked for."""
        if self._view is None:
            from kitlib.widgets.widget import LiveView  # ipywidgets takes a while, and not all have a browser

            self._view = LiveView(kind=self.kind)
            self._view.on_msg(self._on_view)
            self.push(self._view)
        return self._view

    def widget(self) -> "Widget":
        """The widget for a front end: the live view, and perhaps more around it."""
        return self.view()

    def _ipython_display_(self) -> None:
        if not in_notebook():
            print(repr(self))  # a terminal asked to see it
            return
        self._resume()
        NotebookDisplay(self)

    def save(self, path: str | Path) -> Path:
        """Write the picture as PNG, SVG or PDF, by the path's suffix."""
        return self.picture().save(path)

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _draw(self) -> None:
        """Update the widget until the end, slower where there is much to send."""
        pause, drawn, due = UPDATE_SECONDS, None, 0.0
        while not self.stopping.wait(pause):
            self.collect()
            pause, state = UPDATE_SECONDS, self.state()
            if self._view is not None and (state != drawn or time.monotonic() > due):
                drawn, due = state, time.monotonic() + STILL_SECONDS
                pause = max(UPDATE_SECONDS, self.push(self._view) / BYTES_PER_SECOND)
            closed = self._closed_since
            if closed is not None and time.monotonic() - closed > CLOSED_SECONDS:
                self.stopping.set()
        self.collect()
        if self._view is not None:
            self.push(self._view)

    def _on_view(self, _widget: object, content: dict[str, object], _buffers: object) -> None:
        """Count the open views; a closed one may come again."""
        if content.get("event") == "opened":
            self._open_views.add(str(content.get("view")))
            self._closed_since = None
            if self._view is not None:  # a page that was loaded again may have missed the last changes
                self._view.send_state()
            self._resume()
        elif content.get("event") == "closed":
            self._open_views.discard(str(content.get("view")))
            if not self._open_views:
                self._closed_since = time.monotonic()


class ObjectWatch(Watch):
    """A watch of a cluster's objects: one thread follows them, another draws."""

    def __init__(self, kube: Kube, *, minutes: float) -> None:
        super().__init__(kube.cluster)
        self.kube: Kube = kube
        self.logs: PodLogFollowers = PodLogFollowers(kube)
        self.until: float = time.monotonic() + 60 * minutes
        self.began: float = time.time()
        self.ended: float | None = None

    def work(self) -> dict[str, Callable[[], None]]:
        return {"objects": self._follow, "draw": self._draw}

    @abstractmethod
    def specs(self) -> Sequence[WatchSpec]:
        """The objects to follow."""

    @abstractmethod
    def see(self, snapshot: Snapshot, *, last: bool) -> None:
        """Take in a snapshot of the objects; after the last one it ends."""

    def _follow(self) -> None:
        self.ended = None
        try:
            for snapshot in watch_objects(self.kube, *self.specs()):
                last = self.stopping.is_set() or time.monotonic() > self.until
                self.see(snapshot, last=last)
                if last:
                    break
        except KitError as error:
            self.trouble, self.over = error.what, True
        finally:
            self.ended = time.time()
            self.stopping.set()
            self.logs.close()


def rows_in(columns: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> list[list[object]]:
    """Cut rows to some columns; each column has a value for rows that leave it empty."""
    return [[row.get(column) or empty for column, empty in columns.items()] for row in rows]
