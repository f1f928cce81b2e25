"""What all watches share: threads that are named and joined, an end, and three views of one object.

A watch follows something in threads of its own, so the kernel stays free. What it follows, and what that
looks like, is in `run_watch` and `cluster_watch`; how a notebook shows it in `showing`.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kitlib.display.progress import in_notebook
from kitlib.widgets.picture import Picture

if TYPE_CHECKING:
    from ipywidgets import Widget

    from kitlib.widgets.widget import LiveView

UPDATE_SECONDS = 0.25  # four updates a second at most
BYTES_PER_SECOND = 32_000  # of what is drawn: larger frames come less often
STILL_SECONDS = 1.0  # while nothing changes, for what was held back
CLOSED_SECONDS = 10.0  # a page that is loaded again opens its views anew within this time
END_SECONDS = 10.0


class Watch(AbstractContextManager, ABC):
    """Something that is followed until it ends, is stopped, or nobody looks any more.

    As a context manager it is stopped at the end.

    Args:
        title: For people, and for the names of the threads.
    """

    kind = "run"
    moves = True  # whether there is a widget for those who look; else its picture is renewed after each cell

    def __init__(self, title: str) -> None:
        self.title = title
        self.trouble = ""
        self.lock = threading.RLock()  # of what is followed: drawn by one thread, shown by another
        self.stopping = threading.Event()
        self._ended = threading.Event()
        self._then: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._view: LiveView | None = None
        self._open_views: set[str] = set()
        self._unseen_since: float | None = None

    # Its life

    def start(self) -> "Watch":
        """Begin, or go on after a stop; one that runs or has seen the end stays as it is."""
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
            for each in self._threads:
                each.start()
        return self

    def stop(self) -> None:
        """End it, and wait until its threads have; one that has ended is fine."""
        self.stopping.set()
        self.join()

    def join(self, timeout: float = END_SECONDS) -> None:
        """Wait until it has ended by itself, for so many seconds at most."""
        end = time.monotonic() + timeout
        for each in self._threads:
            if each is not threading.current_thread():
                each.join(max(0.0, end - time.monotonic()))

    @property
    def finished(self) -> bool:
        """Whether it follows no more."""
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

    # What each kind of watch says

    over = False  # whether what is followed has come to its end, so that there is nothing to go on with

    @abstractmethod
    def work(self) -> dict[str, Callable[[], None]]:
        """Return what its threads do, by name; each returns when `stopping` is set."""

    @abstractmethod
    def push(self, view: "LiveView") -> int:
        """Bring the widget up to date; return about how many bytes that were."""

    @abstractmethod
    def picture(self) -> Picture:
        """Return what is to be seen now, as a static picture."""

    @abstractmethod
    def still(self) -> list[dict[str, str]]:
        """Return the mimebundles by which it is shown where nothing moves: picture, then tables."""

    @abstractmethod
    def state(self) -> object:
        """Return something that changes when the picture would."""

    def catch_up(self) -> None:
        """Wait a moment for the end, if what is followed has ended already."""

    # Showing

    def view(self) -> "LiveView":
        """Return its widget, made when it is first asked for."""
        if self._view is None:
            from kitlib.widgets.widget import LiveView  # ipywidgets takes a while, and not all have a browser

            self._view = LiveView(kind=self.kind)
            self._view.on_msg(self._told)
            self.push(self._view)
        return self._view

    def widget(self) -> "Widget":
        """Return what a front end shows: its view, and perhaps more around it."""
        return self.view()

    def _ipython_display_(self) -> None:
        if not in_notebook():
            print(repr(self))  # a terminal asked to see it
            return
        from kitlib.widgets.display import Showing

        self.start()
        Showing(self)

    def save(self, path) -> object:
        """Write the picture as PNG, SVG or PDF, by the path's ending."""
        return self.picture().save(path)

    def __exit__(self, *exception) -> None:
        self.stop()

    # Inside

    def _draw(self) -> None:
        """Bring the widget up to date until the end, slower where there is much to send."""
        pause, drawn, due = UPDATE_SECONDS, None, 0.0
        while not self.stopping.wait(pause):
            self._collect()
            pause, state = UPDATE_SECONDS, self.state()
            if self._view is not None and (state != drawn or time.monotonic() > due):
                drawn, due = state, time.monotonic() + STILL_SECONDS
                pause = max(UPDATE_SECONDS, self.push(self._view) / BYTES_PER_SECOND)
            if self._nobody_looks() or self._complete():
                self.stopping.set()
        self._collect()
        if self._view is not None:
            self.push(self._view)

    def _collect(self) -> None:
        """Take in what has come since."""

    def _complete(self) -> bool:
        """Return whether the end has been seen."""
        return self.over

    def _told(self, _widget: object, content: dict[str, object], _buffers: object) -> None:
        """Remember which views are open; a closed one may come again."""
        if content.get("event") == "opened":
            self._open_views.add(str(content.get("view")))
            self._unseen_since = None
            self.start()
        elif content.get("event") == "closed":
            self._open_views.discard(str(content.get("view")))
            if not self._open_views:
                self._unseen_since = time.monotonic()

    def _nobody_looks(self) -> bool:
        since = self._unseen_since
        return since is not None and time.monotonic() - since > CLOSED_SECONDS
