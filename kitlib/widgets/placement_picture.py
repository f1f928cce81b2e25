"""Who ran where, as a static picture: a lane a node over time, who waited above them, the loss below."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kitlib.metrics.placement import LEAVING, RUNNING, STARTING, WAITING, Placement, Stay, short
from kitlib.widgets.run_picture import THEME, tidy

LANE, GAP = 0.8, 0.35
PENDING = "Pending"
LOOKS = {
    WAITING: {"alpha": 0.25, "hatch": "////"},
    STARTING: {"alpha": 0.45},
    RUNNING: {"alpha": 0.9},
    LEAVING: {"alpha": 0.9, "hatch": "xxxx"},
}


def draw(placement: Placement, *, title: str, began: float, now: float) -> Figure:
    """Return the figure.

    Args:
        placement: What was seen.
        title: Above it.
        began: Seconds since 1970 at the left end.
        now: At the right end.
    """
    lanes = {PENDING: [each for each in placement.stays if each.state == WAITING and _long(each, now)]}
    lanes |= {node: [each for each in placement.stays if each.node == node] for node in placement.nodes}
    rows = {lane: _stack(stays, now) for lane, stays in lanes.items()}
    groups = list(dict.fromkeys(each.group for each in placement.stays))
    colours = {group: THEME.lines[index % len(THEME.lines)] for index, group in enumerate(groups)}
    height = 0.22 * sum(1 + max(each, default=0) for each in rows.values()) + 0.1 * len(rows) + 0.6
    heights = [max(1.6, height), *([1.5] * bool(placement.losses))]
    figure = Figure(figsize=(8.5, 0.8 + sum(heights)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    _draw_lanes(axes[0], lanes, rows, colours, began=began, now=now)
    axes[0].set_title(title, loc="left", color=THEME.text)
    for group, losses in placement.losses.items():
        times, values = zip(*sorted(losses), strict=True)
        axes[1].plot([each - began for each in times], values, color=colours.get(group, THEME.main), lw=1.4)
        axes[1].set(ylabel="loss")
    for each in axes:
        tidy(each)
    axes[-1].set(xlabel="seconds", xlim=(0, max(1.0, now - began)))
    return figure


def _draw_lanes(
    axes: Axes,
    lanes: dict[str, list[Stay]],
    rows: dict[str, list[int]],
    colours: dict[str, str],
    *,
    began: float,
    now: float,
) -> None:
    top, ticks = 0.0, []
    for lane, stays in lanes.items():
        deep = 1 + max(rows[lane], default=0)
        ticks.append(top + deep / 2)
        if lane == PENDING:
            axes.axhspan(top - GAP / 2, top + deep + GAP / 2, color=THEME.grid, alpha=0.5, linewidth=0)
        for stay, row in zip(stays, rows[lane], strict=True):
            _draw_stay(axes, stay, top + row + 0.5, colours[stay.group], began=began, now=now)
        top += deep + GAP
    axes.set(ylim=(top, -GAP), yticks=ticks)
    axes.set_yticklabels(lanes)
    legend = [Patch(color=colour, label=group) for group, colour in colours.items()]
    legend += [Patch(facecolor=THEME.grid, hatch=LOOKS[LEAVING]["hatch"], label="told to leave")]
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    axes.legend(handles=legend, frameon=False, fontsize="small", ncols=4, **place)


def _draw_stay(axes: Axes, stay: Stay, at: float, colour: str, *, began: float, now: float) -> None:
    start, end = max(stay.began, began), now if stay.ended is None else stay.ended
    look = {"facecolor": colour, "edgecolor": THEME.ground, "linewidth": 0.6} | LOOKS[stay.state]
    axes.barh(at, end - start, left=start - began, height=LANE, **look)
    number = short(stay.pod)
    if number and stay.state in (RUNNING, WAITING) and end - start > 0.025 * (now - began):
        ink = THEME.ground if stay.state == RUNNING else THEME.text
        axes.text((start + end) / 2 - began, at, number, ha="center", va="center", fontsize=7, color=ink)


def _long(stay: Stay, now: float) -> bool:
    """Return whether a wait can be seen: every pod is without a node for some milliseconds."""
    return (now if stay.ended is None else stay.ended) - stay.began > 0.1


def _stack(stays: Sequence[Stay], now: float) -> list[int]:
    """Return in which row of its lane each stay is drawn: none covers another, and a pod keeps its row."""
    rows: list[int] = []
    free: list[tuple[float, str]] = []  # by row: until when, and by whom, it is taken
    for stay in stays:
        end = now if stay.ended is None else stay.ended
        fits = (row for row, (until, uid) in enumerate(free) if uid == stay.uid or until <= stay.began)
        mine = next((row for row, (_, uid) in enumerate(free) if uid == stay.uid), None)
        row = mine if mine is not None else next(fits, len(free))
        free[row : row + 1] = [(end, stay.uid)]
        rows.append(row)
    return rows
