"""The steps of a training run around a fault: the longest pause, a picture of all runs, and a table. Pure.

Seconds are relative to the fault. docs/elastic.md has the picture and the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from kitlib.widgets.plots import Theme

BEFORE, TIMEOUT = 5.0, 60.0  # seconds: recorded before the fault; without a step until a run is given up
NAMES = {
    "ours": "kit.TorchElastic",
    "torchrun in pods": "torchrun, --max-restarts",
    "torchft in pods": "kit.TorchFT",
    "TrainJob": "kit.TrainJob",
}
MERGED = 0.3  # seconds: steps closer than this are drawn as one line
SIZE, PAUSE, TICK = (13.0, 4.0), 1.7, 0.5  # inches; the heights of a pause, and of a worker's steps


@dataclass(frozen=True)
class Timeline:
    """The steps of a run around a fault.

    Attributes:
        workers: The times of each worker's steps, ascending.
        pause: Start and end of the longest pause; the end is None if training did not continue.
        failed: The run has failed.
    """

    workers: tuple[tuple[float, ...], ...]
    pause: tuple[float, float | None]
    failed: bool = False

    @classmethod
    def around_fault(
        cls, workers: Iterable[Iterable[float]], *, failed: bool = False, given_up: bool = False
    ) -> "Timeline":
        """Find the longest pause that ends after the fault; without steps it begins with the fault.

        Example:
            >>> Timeline.around_fault([[-0.2, -0.1, 0.4, 0.5], [-0.2, -0.1, 0.4]]).pause
            (-0.1, 0.4)
        """
        window = tuple(
            tuple(step for step in steps if -BEFORE <= step <= TIMEOUT + BEFORE) for steps in workers
        )
        times = sorted({step for steps in window for step in steps}) or [0.0]
        pauses = [pair for pair in zip(times, times[1:], strict=False) if pair[1] > 0]
        if given_up or not pauses:
            return cls(window, (times[-1], None), failed)
        return cls(window, max(pauses, key=lambda pair: pair[1] - pair[0]), failed)

    @property
    def seconds(self) -> float:
        """The length of the pause; the time limit if training did not continue."""
        start, end = self.pause
        return TIMEOUT if end is None else end - start

    @property
    def text(self) -> str:
        """The pause as text."""
        if self.pause[1] is None:
            return "fails" if self.failed else f"more than {TIMEOUT:.0f}"
        return f"{self.seconds:.1f}"

    def as_dict(self) -> dict[str, Any]:
        """Convert it for JSON: a line for each worker, in hundredths of a second."""
        workers = [" ".join(f"{step:.2f}" for step in steps) for steps in self.workers]
        start, end = self.pause
        return {
            "workers": workers,
            "pause": [round(start, 3), end and round(end, 3)],
            "failed": self.failed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Timeline":
        """Convert it back."""
        workers = tuple(tuple(float(step) for step in steps.split()) for steps in values["workers"])
        start, end = values["pause"]
        return cls(workers, (start, end), values["failed"])


def by_fault(results: Sequence[Result]) -> dict[str, dict[str, Timeline]]:
    """Collect the timelines of results, by fault and kind of run; empty if there are none."""
    faults: dict[str, dict[str, Timeline]] = {}
    for result in results:
        for kind, values in result.details.get("timelines", {}).items():
            fault = result.what.partition(" → ")[0]
            faults.setdefault(fault, {})[kind] = Timeline.from_dict(values)
    return faults


def table(faults: Mapping[str, Mapping[str, Timeline]]) -> str:
    """Write the pauses as a Markdown table: a row for each fault, a column for each kind of run."""
    kinds = _kinds(faults)
    rows = [["Fault", *(f"`{name}`" for name in kinds.values())], ["---"] * (len(kinds) + 1)]
    for fault, runs in faults.items():
        rows.append([fault, *(runs[kind].text if kind in runs else "not measured" for kind in kinds)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _kinds(faults: Mapping[str, Mapping[str, Timeline]]) -> dict[str, str]:
    """Name the kinds of runs that were measured, in their order."""
    return {kind: name for kind, name in NAMES.items() if any(kind in runs for runs in faults.values())}


def draw(faults: Mapping[str, Mapping[str, Timeline]], figure: Figure, theme: Theme) -> None:
    """Draw a row for each kind of run, a column for each fault: steps as ticks, the pause as a bar."""
    kinds = _kinds(faults)
    grid = figure.subplots(len(kinds), len(faults), sharex=True, sharey=True, squeeze=False)
    for column, (fault, runs) in enumerate(faults.items()):
        for row, (kind, name) in enumerate(kinds.items()):
            axes = grid[row, column]
            if kind in runs:
                _draw_run(axes, runs[kind], theme)
            if not row:
                axes.set_title(fault, loc="left", color=theme.text, fontsize=10)
            if not column:
                axes.set_ylabel(
                    name.replace(", ", "\n"), rotation=0, ha="right", va="center", color=theme.text
                )
            _plain(axes, theme)
    figure.supxlabel(
        "seconds from the fault: the steps of each worker until training goes on, and the longest pause",
        color=theme.text,
        fontsize=9,
    )


def _draw_run(axes: Axes, timeline: Timeline, theme: Theme) -> None:
    for row, steps in enumerate(timeline.workers):
        spans = _spans(steps, end=timeline.pause[1])
        bars = [(first, max(last - first, 0.2)) for first, last in spans]
        axes.broken_barh(bars, (row - TICK / 2, TICK), color=theme.lines[row], linewidth=0)
    start, end = timeline.pause
    until, middle = TIMEOUT if end is None else end, (len(timeline.workers) - 1) / 2
    colour = theme.bad if end is None else theme.busy
    axes.barh(middle, until - start, left=start, height=PAUSE, color=colour, alpha=0.3, zorder=0)
    text = f"> {TIMEOUT:.0f} s" if timeline.text.startswith("more") else timeline.text
    axes.text(
        max(start, 0),
        -0.55,
        text if end is None else f"{text} s",
        va="bottom",
        color=theme.text,
        fontsize=9,
    )
    axes.axvline(0, color=theme.text, linewidth=0.8, linestyle=(0, (2, 2)))


def _spans(steps: Sequence[float], *, end: float | None) -> list[tuple[float, float]]:
    """Merge steps that cannot be told apart in the picture, but not over the end of the pause."""
    spans: list[tuple[float, float]] = []
    for step in steps:
        if spans and step - spans[-1][1] < MERGED and not (end and spans[-1][1] < end <= step):
            spans[-1] = spans[-1][0], step
        else:
            spans.append((step, step))
    return spans


def _plain(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor("none")
    axes.set_xlim(-BEFORE, TIMEOUT)
    axes.set_ylim(1.5, -1.3)
    axes.set_xticks([0, 20, 40])
    axes.set_yticks([])
    axes.tick_params(colors=theme.text, length=0, labelsize=8)
    axes.xaxis.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
