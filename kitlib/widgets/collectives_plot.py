"""The picture of a hang: a row for each rank with its last collectives, by number, and its location."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kitlib.widgets.plots import THEME, Picture

COLUMNS, MAX_RANKS = 6, 32
WIDTH, HEIGHT = 1.55, 0.42  # inches of a call
CHARACTERS = 17  # of a call's name


@dataclass(frozen=True)
class RankRow:
    """A row of the picture.

    Attributes:
        name: The rank's.
        calls: The names of its calls in the group, by their sequence numbers.
        pending: The numbers of those that are not complete.
        location: Where it is now.
    """

    name: str
    calls: Mapping[int, str]
    pending: frozenset[int]
    location: str


def plot_collectives(rows: Sequence[RankRow], *, group: str, title: str) -> Picture:
    """Draw the last calls of ranks in a process group: pending calls framed, missing calls as gaps."""
    rows = rows[:MAX_RANKS]
    last = max((number for row in rows for number in row.calls), default=0)
    numbers = [number for number in range(last - COLUMNS + 1, last + 1) if number > 0]
    calls = {number: [row.calls[number] for row in rows if number in row.calls] for number in numbers}
    usual = {number: max(names, key=names.count, default="") for number, names in calls.items()}
    figure = Figure(figsize=(WIDTH * (len(numbers) + 2.6), HEIGHT * (len(rows) + 1.6)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows):
        for x, number in enumerate(numbers):
            call = row.calls.get(number, "")
            is_odd, waits = call != usual[number], number in row.pending
            colour = THEME.bad if call and is_odd else THEME.busy if waits else THEME.good
            if call:
                axes.add_patch(
                    Rectangle(
                        (x + 0.04, y + 0.1),
                        0.92,
                        0.8,
                        facecolor="none" if waits else colour,
                        edgecolor=colour,
                        linewidth=2 if waits else 0.5,
                        linestyle="--" if waits else "-",
                    )
                )
            message = call[:CHARACTERS] if call else "not called" if number <= last else ""
            axes.text(
                x + 0.5,
                y + 0.5,
                message,
                ha="center",
                va="center",
                fontsize=8,
                color=(colour if waits else THEME.ground) if call else THEME.text,
                style="normal" if call else "italic",
            )
        axes.text(len(numbers) + 0.1, y + 0.5, row.location, va="center", fontsize=8, color=THEME.text)
    axes.set_xlim(0, len(numbers) + 2.1)
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(numbers))], [f"#{number}" for number in numbers])
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [row.name for row in rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.set_frame_on(False)
    axes.set_title(f"{title}\ncalls in {group}: dashed is not complete", loc="left", fontsize=9)
    places = "; ".join(f"{row.name}: {row.location or 'unknown'}" for row in rows)
    return Picture(figure, f"calls in {group}; {places}")
