"""Showing how far a wait has come: one line that changes, in a terminal or in a notebook, else the log.

A script without a terminal gets a record of the logger ``trainyard`` for each change, which `kit` writes to
stderr. Charts and tables that live are not here.
"""

import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from html import escape

from kitlib.display.text import printable

log = logging.getLogger("trainyard")
BAR = 20  # characters of a bar in a terminal
_COUNT = re.compile(r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?) of (?:about )?(\d[\d,]*(?:\.\d+)?)\b")
_elsewhere: ContextVar[bool] = ContextVar("shown_elsewhere", default=False)


class Progress(AbstractContextManager):
    """A line of text that says what happens now; used as a context manager.

    Example:
        >>> with progress("cluster lab") as line:
        ...     line.update("starting etcd")
    """

    rewrites = False  # whether what is shown takes the place of what was

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.monotonic()
        self.last = ""

    def update(self, text: str) -> None:
        """Show ``text`` in place of what was shown before."""
        if text != self.last:
            self.last = text
            self.show(text)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        log.info("%s: %s", self.title, text)

    def done(self, text: str) -> None:
        """Show how it ended, for good."""
        self.last = text
        self.finish(f"{text} ({time.monotonic() - self.began:.1f} s)")

    def show(self, text: str) -> None:
        log.info("%s: %s", self.title, text)

    def finish(self, text: str) -> None:
        log.info("%s: %s", self.title, text)

    def __exit__(self, *exception) -> None:
        return None


class TerminalProgress(Progress):
    """A spinner with a line, on stderr."""

    rewrites = True

    def __init__(self, title: str) -> None:
        super().__init__(title)
        from rich.console import Console  # only where there is a terminal
        from rich.markup import escape

        self.console = Console(stderr=True, highlight=False)
        self.plain = lambda text: escape(printable(text))  # a pod may have written it
        self.status = self.console.status(self.plain(title))

    def __enter__(self):
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

    def __exit__(self, *exception) -> None:
        self.status.stop()


class NotebookProgress(Progress):
    """One output of a cell, updated in place; the executed notebook keeps its last state."""

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


class Part(Progress):
    """A part of something longer, whose line says what the part does, and not how it ended."""

    def __init__(self, whole: Progress) -> None:
        super().__init__(whole.title)
        self.show = whole.update

    def finish(self, text: str) -> None:
        return None


def share(text: str) -> float | None:
    """Return how much is done by a text that counts, between 0 and 1; None where it does not.

    Example:
        >>> share("Building: 709 of about 2,836 packages compiled, 2 min so far")
        0.25
    """
    if not (match := _COUNT.search(text)):
        return None
    done, total = (float(each.replace(",", "")) for each in match.groups())
    return min(done / total, 1.0) if total else None


def progress(title: str) -> Progress:
    """Return the kind of progress that can be seen here."""
    if _elsewhere.get():
        return Progress(title)
    if in_notebook():
        return NotebookProgress(title)
    return TerminalProgress(title) if sys.stderr.isatty() else Progress(title)


@contextmanager
def shown_elsewhere() -> Iterator[None]:
    """Have what is done in here logged alone: a thread's output would land in somebody's cell."""
    token = _elsewhere.set(True)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def is_shown_elsewhere() -> bool:
    """Return whether this is done in `shown_elsewhere`."""
    return _elsewhere.get()


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and getattr(shell, "kernel", None) is not None
