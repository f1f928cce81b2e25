"""A run in a terminal: a readable line for each event on stdout, and a bar for the whole run on stderr.

Where stdout is no terminal, or one that cannot rewrite a line, the bar is a plain line every ten seconds. For
programs stdout has the JSON lines alone, as the pods wrote them; other lines then go to stderr. Which words
are in a line is in `log_format`, what the bar counts in `run_progress`.
"""

import os
import sys
import time
from contextlib import AbstractContextManager

import click

from kitlib.display.tables import printable
from kitlib.display.tracebacks import Line
from kitlib.errors import Interrupted
from kitlib.k8s import pods
from kitlib.metrics import events
from kitlib.metrics.log_format import json_of
from kitlib.metrics.run_progress import RunProgress
from kitlib.runs.logs import Log, readable
from kitlib.runs.run import Run

PLAIN_SECONDS = 10.0


class Lines(AbstractContextManager):
    """The lines of a run on stdout; from time to time one on stderr that says how far the run is.

    Args:
        name: The run's.
        only: The rank that was asked for; by default each line begins with its rank.
        output: ``text`` or ``json``.
    """

    def __init__(self, name: str, *, only: int | str | None, output: str) -> None:
        self.name, self.only, self.output = name, only, output
        self.progress = RunProgress()
        self.reported = time.monotonic()

    def add(self, rank: int | str, line: Line) -> None:
        """Show a line, and what it says about the progress of the run."""
        self.show(rank, line)
        event = events.parse_line(line.text)
        if event is not None:
            self.progress.add(event)
            self.report()

    def show(self, rank: int | str, line: Line) -> None:
        """Write a line in the form that was asked for."""
        raw = json_of(line.text) if self.output == "json" else ""
        if raw:
            click.echo(printable(raw) if sys.stdout.isatty() else raw)
        else:
            click.echo(readable(rank, line, self.only), err=self.output == "json")

    def report(self) -> None:
        """Say how far the run is, if that was not said for some time."""
        if time.monotonic() - self.reported >= PLAIN_SECONDS:
            self.reported = time.monotonic()
            click.echo(f"run {self.name}: {self.progress.count}  {self.progress.figures}".rstrip(), err=True)

    def __exit__(self, *exception) -> None:
        return None


class Bar(Lines):
    """The same in a terminal, with a bar below the lines from the first event on."""

    def __init__(self, name: str, *, only: int | str | None) -> None:
        super().__init__(name, only=only, output="text")
        from rich import progress as bars  # only where there is a terminal
        from rich.console import Console
        from rich.table import Column

        fixed = {"table_column": Column(no_wrap=True, overflow="ellipsis"), "markup": False}
        self.bar = bars.Progress(
            bars.TextColumn("{task.description}", **fixed),
            bars.BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            bars.TextColumn("{task.fields[count]}", **fixed),
            bars.TextColumn("{task.fields[figures]}", **fixed),
            bars.TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False, emoji=False),
            expand=True,
            refresh_per_second=4,
        )
        self.task = self.bar.add_task(name, count="", figures="")

    def show(self, rank: int | str, line: Line) -> None:
        from rich.text import Text

        self.bar.console.print(Text(readable(rank, line, self.only)), soft_wrap=True)

    def report(self) -> None:
        done, total, _ = self.progress.position
        words = {"count": self.progress.count, "figures": self.progress.figures}
        if not self.bar.live.is_started:
            self.bar.reset(self.task, total=total, **words)  # its clock begins with the first event
            self.bar.start()
        self.bar.update(self.task, completed=done, total=total, **words)

    def __exit__(self, *exception) -> None:
        self.bar.stop()


def follow(run: Run, *, rank: int | str | None = None, output: str = "text") -> None:
    """Show the lines of a run as they come, then its verdict; of one rank, that of its pod.

    Raises:
        RunFailed: It failed.
        Interrupted: The user pressed the key; the run goes on.
    """
    try:
        with _display(run.name, only=rank, output=output) as display:
            for who, line in run.logs(rank=rank, follow=True).lines():
                display.add(who, line)
        _judge(run, rank)
    except Interrupted as error:
        where = f"{run.name} -c {run.kube.cluster}"
        fix = f"kit run logs {where} --follow shows it again, kit run delete {where} ends it"
        raise Interrupted(error.what, about=error.about, fix=fix) from error


def show_log(log: Log, *, output: str) -> None:
    """Show what there is of a log."""
    lines = Lines("", only=log.only, output=output)
    for rank, line in log.lines:
        lines.show(rank, line)
    if not log.lines:
        click.echo(log.note, err=True)


def _display(name: str, *, only: int | str | None, output: str) -> Lines:
    can_rewrite = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if output == "text" and can_rewrite:
        return Bar(name, only=only)
    return Lines(name, only=only, output=output)


def _judge(run: Run, rank: int | str | None) -> None:
    if rank is None:
        run.wait()
        return
    pod = run.log_cache.newest_pods(rank).get(rank)
    if pod is not None and pods.phase(pod) == "Failed":
        raise run.failure(run.status, rank=rank)
