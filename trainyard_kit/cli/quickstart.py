"""``trainyard quickstart``: create a cluster, train on its nodes, plot the loss, and delete the cluster."""

import math
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from kitlib import clusters
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput, Interrupted
from kitlib.k8s import pods
from kitlib.metrics import events
from kitlib.metrics.log_format import number
from kitlib.runs.run import Run
from trainyard_kit.cli.follow import BarPrinter, LinePrinter, can_rewrite, follow
from trainyard_kit.cli.options import next_step

if TYPE_CHECKING:
    from rich.console import RenderableType

RUN = "digits"
WIDTH, HEIGHT = 60, 8  # of the chart, in characters
COURSE = "trainyard course FOLDER copies the notebooks and shows how to open them"
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*%@"


def chart(values: Iterable[float], *, blocks: str = BLOCKS) -> str:
    """Draw values as a column chart of text that starts at zero, with at most `WIDTH` columns.

    Args:
        values: Finite values; neighbours are averaged if there are too many.
        blocks: Nine characters, from empty to full.

    Example:
        >>> chart([8.0, 4.0, 1.0]).splitlines()[-1]
        '       0 |███'
    """
    points = list(values)
    group = max(1, -(-len(points) // WIDTH))
    columns = [
        sum(part) / len(part) for start in range(0, len(points), group) if (part := points[start:][:group])
    ]
    top = max([0.0, *columns]) or 1.0
    rows = []
    for row in reversed(range(HEIGHT)):
        label = number(top) if row == HEIGHT - 1 else "" if row else "0"
        heights = (math.ceil(column / top * HEIGHT * 8) - row * 8 for column in columns)
        rows.append(f"{label:>8} |" + "".join(blocks[min(max(height, 0), 8)] for height in heights))
    return "\n".join(rows)


class ProgressPrinter(LinePrinter):
    """Prints only a run's progress; the loss is in the chart, and `trainyard run logs` prints the log."""

    def __init__(self, name: str) -> None:
        super().__init__(name, only=None, output="text")

    def show(self, rank: int | str, line: Line) -> None:
        """Print nothing; the error of a failed run contains the traceback."""


class LossPrinter(BarPrinter):
    """Draws each step's mean loss over the ranks above the progress bar, in place of the log."""

    def __init__(self, name: str) -> None:
        self.losses: dict[int, list[float]] = {}
        self.blocks: str = BLOCKS
        super().__init__(name, only=None)
        self.blocks = ASCII if self.bar.console.options.ascii_only else BLOCKS

    def show(self, rank: int | str, line: Line) -> None:
        event = events.parse_line(line.text)
        if event is None or event.event != "step":
            return
        step, loss = event.fields.get("step"), event.fields.get("loss")
        if events.is_number(step) and events.is_number(loss) and math.isfinite(loss):
            self.losses.setdefault(int(step), []).append(float(loss))

    @property
    def figures(self) -> str:
        """Images per second only; the loss is in the chart and in the result."""
        return "  ".join(word for word in super().figures.split("  ") if not word.startswith("loss"))

    def above(self) -> "list[RenderableType]":
        from rich.text import Text

        means = [sum(losses) / len(losses) for _, losses in sorted(self.losses.copy().items())]
        return [Text(f"    loss\n{chart(means, blocks=self.blocks)}")] if means else []


@click.command()
@click.option("--nodes", default=2, show_default=True, help="Number of workers, each on its own node.")
@click.option("--name", default="quickstart", show_default=True, help="Name of the cluster.")
@click.option("--keep", is_flag=True, help="Keep the cluster for exploration.")
def quickstart(nodes: int, name: str, keep: bool) -> None:
    """Create a local cluster, train a small model on it, show the loss, and delete the cluster.

    The cluster is also deleted after an error or Ctrl-C.
    """
    from kitlib import jobs

    if clusters.find(name, provider="local") is not None:
        raise BadInput(
            "a cluster of this name exists already",
            about=f'cluster "{name}"',
            fix=f"trainyard cluster delete {name}; or choose another name: trainyard quickstart --name NAME",
        )
    for signal_number in (signal.SIGTERM, signal.SIGHUP):  # also clean up when the terminal is closed
        signal.signal(signal_number, signal.default_int_handler)
    try:
        cluster = clusters.create_cluster("local", name=name, nodes=nodes)
        run = jobs.launch(jobs.IndexedJob("trainers/digits_ddp.py", name=RUN, nodes=nodes), cluster=cluster)
        follow(run, printer=LossPrinter if can_rewrite() else ProgressPrinter)
        _show_result(run)
    except KeyboardInterrupt as error:
        fix = "trainyard quickstart" if keep else "trainyard quickstart --keep leaves the cluster"
        raise Interrupted("stopped", about=f'cluster "{name}" and its run', fix=fix) from error
    finally:
        _clean_up(name, keep)


def _show_result(run: Run) -> None:
    steps, evaluations = run.metrics("step"), run.metrics("eval")
    means = steps.groupby("step").loss.mean()
    if not can_rewrite():
        click.echo(f"    loss\n{chart(means)}")
    seconds = pods.seconds_run(run.objects.pods())
    click.echo(
        f"{steps['world_size'].iloc[-1]} workers trained for {seconds or 0:.0f} s: "
        f"loss {number(means.iloc[0])} in the first step and {number(means.iloc[-1])} in the last; "
        f"{evaluations.accuracy.iloc[-1]:.1%} of the test images are classified correctly"
    )


def _clean_up(name: str, keep: bool) -> None:
    existing = clusters.find(name, provider="local")
    if existing is None:
        return
    if keep:
        click.echo(f"The cluster is kept. Log of its run: trainyard run logs {RUN} -c {name}")
        click.echo(f"To delete it: trainyard cluster delete {name}")
        next_step(COURSE)
        return
    try:
        existing.delete()
        next_step(COURSE)
    except KeyboardInterrupt as error:
        raise Interrupted(
            "stopped before the cluster was deleted",
            about=f'cluster "{name}"',
            fix=f"trainyard cluster delete {name}",
        ) from error
