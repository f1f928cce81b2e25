"""Show a run's logs in a terminal: readable lines on stdout, a progress bar on stderr.

If stdout is not a terminal that can rewrite a line, the bar is a plain line every ten seconds.
With ``--output json`` stdout has only the JSON lines, as the pods wrote them; other lines go to stderr.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

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
from trainyard_kit.cli.options import next_step

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_SECONDS = 10.0


class LinePrinter:
    """Prints a run's lines to stdout, and its progress to stderr every ten seconds."""

    def __init__(self, name: str, *, only: int | str | None, output: str) -> None:
        self.name, self.only, self.output = name, only, output
        self.progress: RunProgress = RunProgress()
        self.reported: float = time.monotonic()

    def add(self, rank: int | str, line: Line) -> None:
        """Print a line, and the progress if the line is an event."""
        self.show(rank, line)
        event = events.parse_line(line.text)
        if event is not None:
            self.progress.add(event)
            self.report()

    def show(self, rank: int | str, line: Line) -> None:
        raw = json_of(line.text) if self.output == "json" else ""
        if raw:
            click.echo(printable(raw) if sys.stdout.isatty() else raw)
        else:
            click.echo(readable(rank, line, self.only), err=self.output == "json")

    def report(self) -> None:
        if time.monotonic() - self.reported >= PLAIN_SECONDS:
            self.reported = time.monotonic()
            click.echo(f"run {self.name}: {self.progress.count}  {self.figures}".rstrip(), err=True)

    @property
    def figures(self) -> str:
        """Loss and images per second, for progress lines."""
        return self.progress.figures

    def __enter__(self) -> "LinePrinter":
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class BarPrinter(LinePrinter):
    """Prints a run's lines in a terminal, with a progress bar below them."""

    def __init__(self, name: str, *, only: int | str | None) -> None:
        super().__init__(name, only=only, output="text")
        from rich import progress as bars  # only where there is a terminal
        from rich.console import Console
        from rich.table import Column

        above = self.above

        class Bar(bars.Progress):
            def get_renderables(self) -> "Iterable[RenderableType]":
                yield from above()
                yield from super().get_renderables()

        narrow = Column(no_wrap=True, overflow="ellipsis")
        text = partial(bars.TextColumn, markup=False, table_column=narrow)
        self.bar = Bar(
            text("{task.description}"),
            bars.BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            text("{task.fields[count]}"),
            text("{task.fields[figures]}"),
            bars.TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False, emoji=False),
            expand=True,
            refresh_per_second=4,
        )
        self.task = self.bar.add_task(name, total=None, count="", figures="")
        self.has_events = False

    def show(self, rank: int | str, line: Line) -> None:
        from rich.text import Text

        self.bar.console.print(Text(readable(rank, line, self.only)), soft_wrap=True)

    def update(self, text: str) -> None:
        """Show the status of the pods until the first event."""
        self.bar.update(self.task, count=printable(text))

    def above(self) -> "Iterable[RenderableType]":
        """Return the renderables above the bar."""
        return ()

    def report(self) -> None:
        done, total, _ = self.progress.position
        count, figures = self.progress.count, self.figures
        if not self.has_events:
            self.has_events = True
            self.bar.reset(
                self.task, total=total, count=count, figures=figures
            )  # its clock begins with the first event
        self.bar.update(self.task, completed=done, total=total, count=count, figures=figures)

    def __enter__(self) -> "BarPrinter":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()


def follow(
    run: Run,
    *,
    rank: int | str | None = None,
    output: str = "text",
    printer: Callable[[str], LinePrinter] | None = None,
) -> None:
    """Print the lines of a run, or of one rank, as they are written; raise RunFailed if it fails.

    Args:
        run: The run.
        rank: The rank, by default all.
        output: ``json`` for only the JSON lines.
        printer: Creates another printer for the run's name.
    """
    run_arguments = f"{run.name} -c {run.kube.cluster}"
    try:
        make = printer or partial(BarPrinter, only=rank)
        if printer is None and (output == "json" or not can_rewrite()):
            make = partial(LinePrinter, only=rank, output=output)
        with make(run.name) as lines:
            stream = run.logs(rank=rank, follow=True)
            stream.part_of = lines.update if isinstance(lines, BarPrinter) else None
            for source, line in stream.lines():
                lines.add(source, line)
        if rank is None:
            run.wait()
            if output != "json" and printer is None:
                next_step(f"trainyard run logs {run_arguments}, trainyard run delete {run_arguments}")
            return
        pod = run.log_cache.newest_pods(rank).get(rank)
        if pod is not None and pods.phase(pod) == "Failed":
            raise run.failure(run.status, rank=rank)
    except Interrupted as error:
        shows = f"trainyard run logs {run_arguments} --follow shows it again"
        fix = f"{shows}, trainyard run delete {run_arguments} ends it"
        raise Interrupted(error.what, about=error.about, fix=fix) from error


def show_log(log: Log, *, output: str) -> None:
    """Print a log."""
    printer = LinePrinter("", only=log.only, output=output)
    for rank, line in log.lines:
        printer.show(rank, line)
    if not log.lines:
        click.echo(log.note, err=True)


def can_rewrite() -> bool:
    """Whether this is a terminal that can rewrite a line."""
    return sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
