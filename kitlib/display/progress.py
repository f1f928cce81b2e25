"""Progress of a wait: one line that is updated in a terminal or a notebook; otherwise log records.

A script without a terminal gets a record of the logger ``trainyard`` for each change, which the command
writes to stderr. Live charts and tables are in `kitlib.widgets`.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from html import escape
from typing import Self

from kitlib.display.tables import printable

log: logging.Logger = logging.getLogger("trainyard")
BAR = 20  # characters of a bar in a terminal
_COUNT = re.compile(r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?) of (?:about )?(\d[\d,]*(?:\.\d+)?)\b")
_log_only: ContextVar[bool] = ContextVar("shown_elsewhere", default=False)


class Progress(AbstractContextManager["Progress"]):
    """A line of text about the current step; used as a context manager."""

    rewrites = False  # whether a line replaces the previous one
    in_place = False  # whether it is updated in place, so that it can show each step

    def __init__(self, title: str) -> None:
        self.title = title
        self.began: float = time.monotonic()
        self.last: str = ""

    def update(self, text: str) -> None:
        """Replace the line."""
        if text != self.last:
            self.last = text
            self.show(text)

    def note(self, text: str) -> None:
        """Show a permanent line."""
        log.info("%s: %s", self.title, text)

    def done(self, text: str, *, seconds: float | None = None) -> None:
        """Show the result permanently, with its duration: by default since this object was created."""
        self.last = text
        took = f"{time.monotonic() - self.began:.1f}" if seconds is None else f"{seconds:.0f}"
        self.finish(f"{text} ({took} s)")

    def show(self, text: str) -> None:
        log.info("%s: %s", self.title, text)

    def finish(self, text: str) -> None:
        log.info("%s: %s", self.title, text)

    def __exit__(self, *exception: object) -> None:
        return None


class TerminalProgress(Progress):
    """A spinner with a line, on stderr."""

    rewrites = in_place = True

    def __init__(self, title: str) -> None:
        super().__init__(title)
        from rich.console import Console  # only where there is a terminal
        from rich.markup import escape

        self.console = Console(stderr=True, highlight=False)
        self.plain: Callable[[str], str] = lambda text: escape(printable(text))  # a pod may have written it
        self.status = self.console.status(self.plain(title))

    def __enter__(self) -> Self:
        self.status.start()
        return self

    def show(self, text: str) -> None:
        done = share(text)
        bar = "" if done is None else f"{'━' * round(BAR * done):{BAR}} {done:4.0%}  "
        self.status.update(f"[bold]{self.plain(self.title)}[/]: {bar}{self.plain(text)}")

    def note(self, text: str) -> None:
        self.console.print(f"[bold]{self.plain(self.title)}[/]: {self.plain(text)}")

    def finish(self, text: str) -> None:
        self.status.stop()
        self.console.print(f"[bold]{self.plain(self.title)}[/]: {self.plain(text)}")

    def __exit__(self, *exception: object) -> None:
        self.status.stop()


class NotebookProgress(Progress):
    """One output of a cell, updated in place; the executed notebook keeps its last state."""

    in_place = True

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.handle = None

    def show(self, text: str) -> None:
        from IPython.display import display

        line = f"{self.title}: {text}"
        done = share(text)
        bar = "" if done is None else f'<progress value="{done:.3f}"></progress> '
        bundle = {"text/plain": line, "text/html": f"{bar}<code>{escape(line)}</code>"}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    finish = show


class PartialProgress(Progress):
    """A part of a longer operation: updates that operation's line, and shows no result."""

    def __init__(self, title: str, update: Callable[[str], None]) -> None:
        super().__init__(title)
        self.whole = update

    def show(self, text: str) -> None:
        self.whole(text)

    def finish(self, text: str) -> None:
        return None


def share(text: str) -> float | None:
    """Parse the completed share, between 0 and 1, from a text with counts; None if it has none.

    Example:
        >>> share("Building: 709 of about 2,836 packages compiled, 2 min so far")
        0.25
    """
    if not (match := _COUNT.search(text)):
        return None
    done, total = (float(group.replace(",", "")) for group in match.groups())
    return min(done / total, 1.0) if total else None


def progress(title: str) -> Progress:
    """Create the kind of progress that fits this terminal, notebook or log."""
    if _log_only.get():
        return Progress(title)
    if in_notebook():
        return NotebookProgress(title)
    return TerminalProgress(title) if sys.stderr.isatty() else Progress(title)


@contextmanager
def shown_elsewhere() -> Iterator[None]:
    """Only log progress: a thread's output would appear in the cell that runs at that time."""
    token = _log_only.set(True)
    try:
        yield
    finally:
        _log_only.reset(token)


def is_shown_elsewhere() -> bool:
    return _log_only.get()


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and getattr(shell, "kernel", None) is not None
