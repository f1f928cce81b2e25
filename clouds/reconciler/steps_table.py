"""The steps of something that takes minutes at a cloud, with the times that were expected and that they took.

Where somebody looks at a notebook it is one output that changes each second; where nobody does (papermill,
nbclient), a plain table that changes with the steps, so the executed notebook keeps the last. In a terminal,
and in a log, each step is a line when it ends. It is always shown from the thread that runs the cell.
"""

from contextlib import AbstractContextManager
from html import escape

from clouds.reconciler.snapshot import Phase, ReconcileStep, Snapshot, duration
from kitlib.display import progress
from kitlib.widgets.display import has_frontend

MARKS = {Phase.WAITS: "○", Phase.RUNS: "◐", Phase.DONE: "✓", Phase.FAILED: "✗", Phase.LEFT: "–"}
HEAD = ("", "step", "state", "expected", "took", "", "")


class StepsTable(AbstractContextManager):
    """A report for `steps.bring_up` and `steps.take_down` that shows itself where it is called.

    Args:
        title: What is worked on: ``cluster lab``.

    Example:
        >>> with StepsTable("cluster lab") as report:
        ...     bring_up(resources, title="cluster lab", resume="…", report=report)
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.last: Snapshot | None = None
        self.handle = None
        self.in_cell = progress.in_notebook() and not progress.is_shown_elsewhere()
        self.live = self.in_cell and has_frontend()
        self.line = None if self.in_cell else progress.progress(title)

    def __call__(self, snapshot: Snapshot) -> None:
        """Show it, if it differs from what is shown."""
        before, self.last = self.last, snapshot
        changed = before is None or phases(before) != phases(snapshot) or before.over != snapshot.over
        if self.line is not None:
            self._write(before, snapshot)
        elif changed or self.live:
            self._display(snapshot)

    def _display(self, snapshot: Snapshot) -> None:
        from IPython.display import display

        table = snapshot.table()
        shown = html(snapshot) if self.live else table._repr_html_()
        bundle = {"text/plain": f"{self.title}: {snapshot}\n{table!r}", "text/html": shown}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def _write(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        old = dict(phases(before)) if before is not None else {}
        for each in snapshot.steps:
            if each.phase in (Phase.DONE, Phase.FAILED) and old.get(each.name) is not each.phase:
                self.line.note(ended(each))
        if snapshot.over:
            self.line.done(str(snapshot))
        elif self.line.rewrites:
            self.line.update(str(snapshot))

    def __enter__(self) -> "StepsTable":
        if self.line is not None:
            self.line.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        if self.line is not None:
            self.line.__exit__(*exception)


def phases(snapshot: Snapshot) -> list[tuple[str, Phase]]:
    """Key of the state, which changes when a step goes on, and not with every second."""
    return [(each.name, each.phase) for each in snapshot.steps]


def ended(step: ReconcileStep) -> str:
    """Return a line for a step that has ended."""
    took = f"after {duration(step.actual or 0)}, expected {duration(step.expected)}"
    return f"{MARKS[step.phase]} {step.name}: {step.state} {took}" + (f": {step.words}" if step.words else "")


def html(snapshot: Snapshot) -> str:
    """Return the table as HTML, with the front end's own colours."""
    from kitlib.widgets.widget import bundle

    head = "".join(f"<th>{each}</th>" for each in HEAD)
    body = "".join(map(_row, snapshot.steps))
    return (
        f"<style>{bundle(('steps.css',))}</style><div class='ty-steps'>"
        f"<p role='status'><b>{escape(snapshot.title)}</b>: {escape(str(snapshot))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(step: ReconcileStep) -> str:
    share = 0.0 if step.actual is None else step.actual / step.expected if step.expected else 1.0
    if step.phase is Phase.DONE:
        share = 1.0
    took = "" if step.actual is None else duration(step.actual)
    bar = f"<span class='ty-bar'><i style='width:{min(100, round(100 * share))}%'></i></span>"
    return (
        f"<tr data-phase='{step.phase}'><td class='ty-state'>{MARKS[step.phase]}</td>"
        f"<td>{escape(step.name)}</td><td class='ty-state'>{escape(step.state)}</td>"
        f"<td class='ty-time'>{duration(step.expected)}</td><td class='ty-time'>{took}</td>"
        f"<td>{bar if step.actual is not None else ''}</td>"
        f"<td class='ty-words'><small>{escape(step.words)}</small></td></tr>"
    )
