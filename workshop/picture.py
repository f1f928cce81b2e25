"""A workshop as a static picture: how far each attendee is in each notebook, and where a cell has failed."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kitlib.widgets.run_picture import THEME
from workshop.attendee_status import Seat, ended
from workshop.progress_reporter import FAILED

ROW = 0.24  # inches


def shares(seats: Sequence[Seat]) -> tuple[list[str], list[list[float]]]:
    """Return the notebooks that anybody has begun, and how far each attendee is in each.

    Returns:
        Names of notebooks, and a row for each attendee: shares of its cells from 0 to 1; below 0
        where a cell has failed.
    """
    columns = sorted({place.notebook for seat in seats for place in seat.places if place.of})
    rows = []
    for seat in seats:
        by_name = {place.notebook: place for place in seat.places}
        rows.append([_share(by_name.get(each)) for each in columns])
    return columns, rows


def _share(place) -> float:
    if place is None or not place.of:
        return 0.0
    share = 1.0 if ended(place) else round(min(0.99, place.cell / place.of), 2)
    return -share if place.state == FAILED else share


def draw(seats: Sequence[Seat], *, title: str) -> Figure:
    """Return the figure: a row for each attendee, a box for each notebook, filled as far as they are."""
    columns, rows = shares(seats)
    size = (2.2 + 0.75 * max(1, len(columns)), 0.8 + ROW * max(1, len(seats)))
    figure = Figure(figsize=size, layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots()
    for across, _ in enumerate(columns):
        for down, row in enumerate(rows):
            colour = THEME.bad if row[across] < 0 else THEME.good if row[across] == 1 else THEME.busy
            axes.add_patch(Rectangle((across, down + 0.15), 0.9, 0.7, facecolor=THEME.grid))
            axes.add_patch(Rectangle((across, down + 0.15), 0.9 * abs(row[across]), 0.7, facecolor=colour))
    axes.set(xlim=(0, max(1, len(columns))), ylim=(max(1, len(seats)), 0))
    axes.set_xticks(
        [each + 0.45 for each in range(len(columns))], [each.partition("_")[0] for each in columns]
    )
    axes.set_yticks([each + 0.5 for each in range(len(seats))], [each.name for each in seats])
    axes.tick_params(length=0, labelsize="small", colors=THEME.text)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    words = "green: finished, blue: on the way, red: a cell has failed"
    axes.set_xlabel(words if columns else "no notebook was seen yet", fontsize="x-small", color=THEME.text)
    axes.set_title(title, loc="left", color=THEME.text)
    return figure
