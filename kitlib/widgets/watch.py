"""Watches: objects that follow something in background threads, and show it as text, a picture, or live.

`run_view`, `cluster_view`, `placement` and `dashboard` implement them; `display` shows a watch in a notebook.
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
BYTES_PER_SECOND = 32_000  # to the browser: larger frames are sent less often
IDLE_SECONDS = 1.0  # between updates while nothing changes
CLOSED_SECONDS = 10.0  # a reloaded page opens its views again within this time
END_SECONDS = 10.0


class Watch(AbstractContextManager["Watch"], ABC):
    """A watch, which follows something until that ends, it is stopped, or its last view is closed.

    It is a context manager that stops it.
    """

    kind = "run"
    is_live = True  # whether it has a widget for front ends; otherwise its picture is updated after each cell
    over: bool = False  # whether what it follows has ended, so that it cannot be restarted

    def __init__(self, title: str) -> None:
        self.title = title
        self.error: str = ""
        self.lock = threading.RLock()  # of the state: one thread draws it, another displays it
        self.stopping: threading.Event = threading.Event()
        self._ended = threading.Event()
        self._stopped = False  # by `stop`, and not because no view is open
        self._callbacks: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._view: LiveView | None = None
        self._open_views: set[str] = set()
        self._closed_since: float | None = None

    # Life cycle

    def start(self) -> Self:
        """Start, or restart after a stop; does nothing if it is running, or its subject has ended."""
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
        """Stop until `start`, even if it is displayed again, and join the threads; idempotent."""
        self._stopped = True
        self.stopping.set()
        self.join()

    def _resume(self) -> None:
        """Start for a viewer, unless it was stopped."""
        if not self._stopped:
            self.start()

    def join(self, timeout: float = END_SECONDS) -> None:
        """Wait up to ``timeout`` seconds until it has ended by itself."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def finished(self) -> bool:
        """Whether all its threads have ended."""
        return self._ended.is_set()

    def when_finished(self, call: Callable[[], None]) -> None:
        """Call a function, from one of its threads, when it has ended."""
        self._callbacks.append(call)

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
                for call in self._callbacks:
                    call()

    # Subclasses

    @abstractmethod
    def work(self) -> dict[str, Callable[[], None]]:
        """Return the functions of its threads, by name; each returns when `stopping` is set."""

    @abstractmethod
    def push(self, view: "LiveView") -> int:
        """Update the widget; return the approximate number of bytes sent."""

    @abstractmethod
    def picture(self) -> Picture:
        """Plot the current state."""

    @abstractmethod
    def table(self) -> Table:
        """Tabulate the current state."""

    def static_view(self) -> list[dict[str, str]]:
        """MIME bundles for a front end without widgets: picture, then table."""
        table = self.table()
        return [self.picture().bundle(), {"text/plain": repr(table), "text/html": table._repr_html_()}]

    @abstractmethod
    def state(self) -> object:
        """Return a value that changes whenever the picture does."""

    def catch_up(self) -> None:
        """If its subject has ended, wait until the watch has ended."""

    def collect(self) -> None:
        """Process the log lines that have arrived."""

    # Display

    def view(self) -> "LiveView":
        """The live view, created on first use."""
        if self._view is None:
            from kitlib.widgets.widget import LiveView  # slow to import, and only used with a browser

            self._view = LiveView(kind=self.kind)
            self._view.on_msg(self._on_view)
            self.push(self._view)
        return self._view

    def widget(self) -> "Widget":
        """The widget for a front end: the live view, possibly with controls."""
        return self.view()

    def _ipython_display_(self) -> None:
        if not in_notebook():
            print(repr(self))
            return
        self._resume()
        NotebookDisplay(self)

    def save(self, path: str | Path) -> Path:
        """Save the picture as PNG, SVG or PDF, by the path's suffix."""
        return self.picture().save(path)

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _draw(self) -> None:
        """Update the widget until the end, less often if the updates are large."""
        pause, drawn, due = UPDATE_SECONDS, None, 0.0
        while not self.stopping.wait(pause):
            self.collect()
            pause, state = UPDATE_SECONDS, self.state()
            if self._view is not None and (state != drawn or time.monotonic() > due):
                drawn, due = state, time.monotonic() + IDLE_SECONDS
                pause = max(UPDATE_SECONDS, self.push(self._view) / BYTES_PER_SECOND)
            closed = self._closed_since
            if closed is not None and time.monotonic() - closed > CLOSED_SECONDS:
                self.stopping.set()
        self.collect()
        if self._view is not None:
            self.push(self._view)

    def _on_view(self, _widget: object, content: dict[str, object], _buffers: object) -> None:
        """Count the open views; a closed one may be opened again."""
        if content.get("event") == "opened":
            self._open_views.add(str(content.get("view")))
            self._closed_since = None
            if self._view is not None:  # a reloaded page may have missed the last changes
                self._view.send_state()
            self._resume()
        elif content.get("event") == "closed":
            self._open_views.discard(str(content.get("view")))
            if not self._open_views:
                self._closed_since = time.monotonic()


class ObjectWatch(Watch):
    """A watch of a cluster's objects: one thread watches them, another draws."""

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
        """The objects to watch."""

    @abstractmethod
    def update(self, snapshot: Snapshot, *, last: bool) -> None:
        """Process a snapshot of the objects; ``last`` is True for the final one."""

    def _follow(self) -> None:
        self.ended = None
        try:
            for snapshot in watch_objects(self.kube, *self.specs()):
                last = self.stopping.is_set() or time.monotonic() > self.until
                self.update(snapshot, last=last)
                if last:
                    break
        except KitError as error:
            self.error, self.over = error.what, True
        finally:
            self.ended = time.time()
            self.stopping.set()
            self.logs.close()


def rows_in(columns: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> list[list[object]]:
    """Select columns of rows; ``columns`` has the default of each for empty cells."""
    return [[row.get(column) or default for column, default in columns.items()] for row in rows]
