"""A table of the steps of a cloud operation that takes minutes, with usual and actual durations.

In a notebook with a front end it is one output, updated each second; under papermill and nbclient a plain
table, updated when a step changes, so that the executed notebook keeps the last. In a terminal or a log,
each step is one line when it ends. Only the thread that runs the cell displays it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from types import TracebackType

from kitlib.display import progress
from kitlib.display.tables import Table
from kitlib.widgets.display import has_frontend

KEEP_AWAKE = "started from this machine once the control plane is ready: keep it awake, or repeat the call"
COLUMNS = ("step", "state", "usually", "took", "message")


class Clock:
    """Monotonic time; tests replace it with simulated time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Phase(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


MARKS = dict(zip(Phase, "○◐✓✗", strict=True))


@dataclass
class OperationStep:
    """One step: its usual duration in seconds, the cloud's message, and when it began and ended."""

    name: str
    usual: float = 0.0
    phase: Phase = Phase.WAITING
    message: str = ""
    began: float | None = None
    ended: float | None = None

    def took(self, now: float) -> float | None:
        """Its duration in seconds, so far or in total; None before it begins."""
        if self.began is None:
            return None
        return (now if self.ended is None else self.ended) - self.began


class Steps(AbstractContextManager["Steps"]):
    """The steps of one operation on a cluster; a context manager that displays their table.

    Example:
        >>> with Steps('cluster "lab"') as steps:
        ...     with steps.step("network"):
        ...         create_network()
    """

    def __init__(self, title: str, clock: Clock | None = None) -> None:
        self.title, self.clock = title, clock or Clock()
        self._steps: dict[str, OperationStep] = {}
        self._began, self._lock = self.clock.now(), threading.Lock()
        self._shown, self._handle = "", None
        self._logged: set[str] = set()
        self._in_cell = progress.in_notebook() and not progress.is_shown_elsewhere()
        self._live = self._in_cell and has_frontend()
        self._line = None if self._in_cell else progress.progress(title)

    def __enter__(self) -> "Steps":
        if self._line is not None:
            self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:  # drop steps that turned out not to be needed
            with self._lock:
                self._steps = {
                    name: step for name, step in self._steps.items() if step.phase is not Phase.WAITING
                }
        self.show(final=True)
        if self._line is not None:
            self._line.__exit__(kind, error, traceback)

    @contextmanager
    def step(self, name: str, message: str = "") -> Iterator[None]:
        """Run the block as a step, which fails if the block raises."""
        self.update(name, Phase.RUNNING, message)
        try:
            yield
        except BaseException as error:
            self.update(name, Phase.FAILED, getattr(error, "what", None) or type(error).__name__)
            raise
        self.update(name, Phase.DONE)

    def update(self, name: str, phase: Phase, message: str = "", *, usual: float = 0.0) -> None:
        """Set the phase of a step; a new name is added, with its usual duration in seconds."""
        with self._lock:
            step, now = self._steps.setdefault(name, OperationStep(name, usual)), self.clock.now()
            if phase is not Phase.WAITING and step.began is None:
                step.began = now
            if phase in (Phase.WAITING, Phase.RUNNING):
                step.ended = None
            elif step.phase is not phase:
                step.ended = now
            step.phase, step.message = phase, message
        self.show()

    def show(self, *, final: bool = False) -> None:
        """Display the table if a step has changed; with a front end also to update durations."""
        if self._line is not None:
            self._write(self._line, final)
        elif threading.current_thread() is threading.main_thread():  # which runs the cell
            state = f"{final} {[(step.name, step.phase, step.message) for step in self.steps]}"
            if state != self._shown or self._live:
                self._shown = state
                self._display()

    def sleep(self, seconds: float) -> None:
        """Sleep between two requests; with a front end keep updating the durations."""
        end = self.clock.now() + seconds
        while (left := end - self.clock.now()) > 0:
            self.clock.sleep(min(1.0, left) if self._live else left)
            self.show()

    @property
    def steps(self) -> list[OperationStep]:
        with self._lock:
            return list(self._steps.values())

    def table(self) -> Table:
        now = self.clock.now()
        rows = []
        for step in self.steps:
            durations = duration(step.usual or None), duration(step.took(now))
            rows.append((step.name, step.phase.value, *durations, step.message))
        return Table(COLUMNS, rows, empty="nothing to do")

    def __str__(self) -> str:
        steps = self.steps
        done = sum(step.phase is Phase.DONE for step in steps)
        parts = [f"{done} of {len(steps)} steps done after {duration(self.clock.now() - self._began)}"]
        for phase in (Phase.FAILED, Phase.RUNNING):
            if names := [step.name for step in steps if step.phase is phase]:
                parts.append(f"{phase.value}: {', '.join(names)}")
        return "; ".join(parts)

    def _display(self) -> None:
        from IPython.display import display

        table = self.table()
        shown = self._html() if self._live else table._repr_html_()
        bundle = {"text/plain": f"{self.title}: {self}\n{table!r}", "text/html": shown}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _write(self, line: progress.Progress, final: bool) -> None:
        for step in self.steps:
            if step.phase in (Phase.DONE, Phase.FAILED) and step.name not in self._logged:
                self._logged.add(step.name)
                took = duration(step.took(self.clock.now()))
                message = f": {step.message}" if step.message else ""
                line.note(f"{MARKS[step.phase]} {step.name}: {step.phase.value} after {took}{message}")
        if final:
            line.done(str(self))
        elif line.rewrites:
            line.update(str(self))

    def _html(self) -> str:
        from kitlib.widgets.widget import bundle

        head = "".join(f"<th>{title}</th>" for title in ("", *COLUMNS[:4], "", ""))
        body = "".join(_row(step, self.clock.now()) for step in self.steps)
        return (
            f"<style>{bundle(('steps.css',))}</style><div class='ty-steps'>"
            f"<p role='status'><b>{escape(self.title)}</b>: {escape(str(self))}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _row(step: OperationStep, now: float) -> str:
    took = step.took(now)
    share = 1.0 if step.phase is Phase.DONE or not step.usual else (took or 0.0) / step.usual
    bar = f"<span class='ty-bar'><i style='width:{min(100, round(100 * share))}%'></i></span>"
    return (
        f"<tr data-phase='{step.phase}'><td class='ty-state'>{MARKS[step.phase]}</td>"
        f"<td>{escape(step.name)}</td><td class='ty-state'>{step.phase.value}</td>"
        f"<td class='ty-time'>{duration(step.usual or None) or ''}</td>"
        f"<td class='ty-time'>{duration(took) or ''}</td><td>{'' if took is None else bar}</td>"
        f"<td class='ty-words'><small>{escape(step.message)}</small></td></tr>"
    )


def duration(seconds: float | None) -> str | None:
    """Format seconds in minutes and seconds; None stays None.

    Example:
        >>> duration(80)
        '1 min 20 s'
    """
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes and rest else f"{minutes} min" if minutes else f"{rest} s"
