"""A plot of a hang: a row for each rank with its last collectives, by sequence number, and its location."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kitlib.widgets.plots import THEME, Picture

COLUMNS, MAX_RANKS = 6, 32
WIDTH, HEIGHT = 1.55, 0.42  # of a call, in inches
CHARACTERS = 17  # of a call's name


@dataclass(frozen=True)
class RankRow:
    """A row of the plot.

    Attributes:
        name: Of the rank.
        calls: Names of its calls in the process group, by sequence number.
        pending: Sequence numbers of incomplete calls.
        location: Its current position in the program.
    """

    name: str
    calls: Mapping[int, str]
    pending: frozenset[int]
    location: str


def plot_collectives(rows: Sequence[RankRow], *, group: str, title: str) -> Picture:
    """Plot the last calls of ranks in a process group: pending calls dashed, missing calls empty."""
    rows = rows[:MAX_RANKS]
    last = max((number for row in rows for number in row.calls), default=0)
    numbers = [number for number in range(last - COLUMNS + 1, last + 1) if number > 0]
    calls = {number: [row.calls[number] for row in rows if number in row.calls] for number in numbers}
    majority = {number: max(names, key=names.count, default="") for number, names in calls.items()}
    figure = Figure(figsize=(WIDTH * (len(numbers) + 2.6), HEIGHT * (len(rows) + 1.6)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows):
        for x, number in enumerate(numbers):
            call = row.calls.get(number, "")
            differs, pending = call != majority[number], number in row.pending
            colour = THEME.bad if call and differs else THEME.busy if pending else THEME.good
            if call:
                box = Rectangle((x + 0.04, y + 0.1), 0.92, 0.8, edgecolor=colour)
                box.set(facecolor="none" if pending else colour, linewidth=2 if pending else 0.5)
                box.set_linestyle("--" if pending else "-")
                axes.add_patch(box)
            text = axes.text(x + 0.5, y + 0.5, call[:CHARACTERS] or "not called", ha="center", va="center")
            text.set(fontsize=8, style="normal" if call else "italic")
            text.set_color((colour if pending else THEME.ground) if call else THEME.text)
        axes.text(len(numbers) + 0.1, y + 0.5, row.location, va="center", fontsize=8, color=THEME.text)
    axes.set_xlim(0, len(numbers) + 2.1)
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(numbers))], [f"#{number}" for number in numbers])
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [row.name for row in rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.set_frame_on(False)
    axes.set_title(f"{title}\ncalls in {group}: dashed is not complete", loc="left", fontsize=9)
    locations = "; ".join(f"{row.name}: {row.location or 'unknown'}" for row in rows)
    return Picture(figure, f"calls in {group}; {locations}")
