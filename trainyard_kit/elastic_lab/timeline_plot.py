"""A run's timeline as a static plot: world size, states of workers, and loss over time.

The geometry (labels, pauses, lanes) is shared with the live view in ``static/timeline.js``.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kitlib.widgets.plots import THEME, Picture, tidy
from trainyard_kit.elastic_lab.timeline import Row, Step, Timeline

LEVELS = 9  # rows of labels above the axes; changes that do not fit have no label
STYLES = {  # colour, hatching and opacity: distinguishable without colours
    "training": (THEME.lines[0], None, 0.85),
    "waiting": (THEME.lines[1], "////", 0.45),
    "hanging": (THEME.lines[5], "xxxx", 0.45),
    "unknown": (THEME.lines[7], "....", 0.3),
}
WIDTH = 10.0
TRAINED_ON_SECONDS = 1.0  # training after a change, from which the pause's label gives both times
CHARACTERS = 118  # of a label as wide as the plot
LABEL_BOX = {"facecolor": THEME.ground, "edgecolor": "none", "pad": 0.8}
LEGEND = {"frameon": False, "fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1.0, 1.05)}


def plot_timeline(timeline: Timeline) -> Picture:
    """Plot a timeline as four axes with a shared time axis."""
    worker_lanes = lanes(timeline)
    marks, levels = layout_labels(timeline, CHARACTERS)
    heights = [0.17 * levels + 0.05, 1.1, 0.2 + 0.3 * max(1, len(worker_lanes)), 1.7]
    figure = Figure(figsize=(WIDTH, 1.2 + sum(heights)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(4, sharex=True, height_ratios=heights)
    axes[0].set_title(timeline.name, loc="left", color=THEME.text)
    _draw_labels(axes[0], marks, levels)
    _draw_world(axes[1], timeline)
    _draw_lanes(axes[2], worker_lanes)
    _draw_loss(axes[3], timeline)
    for axis in axes[1:]:
        for mark in marks:
            axis.axvline(mark.time, color=THEME.text, linewidth=0.8, linestyle=(0, (2, 2)), alpha=0.7)
        tidy(axis)
    axes[3].set(xlabel="seconds", xlim=(0, max(1.0, timeline.now - timeline.began)))
    figure.align_ylabels(axes)
    return Picture(figure, f"Run {timeline.name}: {timeline.summary}; {len(timeline.rows)} changes")


# Geometry, in seconds from the beginning


@dataclass(frozen=True)
class Mark:
    """A change, and the position of its label.

    Attributes:
        time: Seconds from the beginning.
        label: The change, and the worker or node; empty if it does not fit.
        level: The label's row, from the bottom, so that neither labels nor lines cross another label.
        begin: The label's left edge, in seconds.
    """

    time: float
    label: str
    level: int
    begin: float


def layout_labels(timeline: Timeline, characters: int) -> tuple[list[Mark], int]:
    """Lay out the marks' labels; return the marks and the number of levels."""
    width = max(1.0, timeline.now - timeline.began) / characters  # of a character, in seconds
    marks: list[Mark] = []
    for row in reversed(timeline.rows):  # from the right, so that later labels are lower
        time, label = row.time - timeline.began, label_of(row)
        begin = max(0.0, min(time, width * (characters - len(label))))
        end = begin + width * (len(label) + 2)
        level = 1 + max((mark.level for mark in marks if mark.begin < end or mark.time < end), default=-1)
        if level < LEVELS:
            marks.append(Mark(time, label, level, begin))
        else:
            marks.append(Mark(time, "", 0, time))
    return marks[::-1], 1 + max((mark.level for mark in marks), default=0)


def label_of(row: Row) -> str:
    """Describe a change: ``killed lab-2 (rank 1)``."""
    subject = row.worker or row.node
    rank = "" if row.rank is None or not row.worker else f" (rank {row.rank})"
    return f"{row.what} {subject}{rank}".strip()


def pauses(timeline: Timeline) -> list[tuple[float, float, str]]:
    """List the pauses of training until the first step of each round: begin, end, label.

    The label is the time since the change, and also the length of the pause if workers trained in between.
    """
    spans = []
    for row in timeline.rows:
        if row.round is None or row.steps_lost is None:  # not a round's first row
            continue
        end = row.time + row.seconds if row.seconds is not None else timeline.now
        last_step = max((step.time for step in timeline.steps if step.time < end), default=row.time)
        begin = max(row.time, last_step)  # the others keep training until a new worker joins
        label = f"{row.seconds:.1f} s" if row.seconds is not None else "…"
        if row.seconds is not None and begin - row.time > TRAINED_ON_SECONDS:
            label = f"paused {end - begin:.1f} s, until {label} after the request"
        spans.append((begin - timeline.began, end - timeline.began, label))
    return spans


def labelled_pauses(timeline: Timeline) -> list[tuple[float, float, str, bool]]:
    """List the pauses, with whether the label is raised."""
    spans, width = pauses(timeline), max(1.0, timeline.now - timeline.began) / CHARACTERS
    return [(*pause, raised) for pause, raised in zip(spans, raise_labels(spans, width), strict=True)]


def raise_labels(labels: list[tuple[float, float, str]], width: float) -> Iterator[bool]:
    """Yield for each pause whether its label is raised, so that it does not cover the one before.

    ``width`` is that of a character, in seconds.
    """
    right = [-math.inf] * 2  # edge of the last label in each row
    for begin, end, label in labels:
        middle, half = (begin + end) / 2, width * (len(label) + 1) / 2
        raised = middle - half < right[False] and right[True] <= right[False]
        right[raised] = middle + half
        yield raised


def lanes(timeline: Timeline) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """List each worker's states: kind, begin, end."""
    return [
        (worker, [(span.kind, span.begin - timeline.began, span.end - timeline.began) for span in spans])
        for worker, spans in timeline.states.items()
    ]


def world(timeline: Timeline) -> tuple[list[float], list[int]]:
    """Return the times of changes of the world size, and the sizes; the last size is repeated at the end."""
    times = [
        0.0,
        *(rdzv.time - timeline.began for rdzv in timeline.rendezvous),
        timeline.now - timeline.began,
    ]
    sizes = [0, *timeline.world_sizes]
    return times, [*sizes, sizes[-1]]


# Drawing


def _draw_labels(axes: Axes, marks: list[Mark], levels: int) -> None:
    axes.set_axis_off()
    axes.set(ylim=(0, max(1, levels)))
    for mark in marks:
        axes.plot(
            [mark.time] * 2, [0, mark.level + 0.15], color=THEME.text, linewidth=0.8, alpha=0.7, clip_on=False
        )
        axes.annotate(
            mark.label,
            (mark.begin, mark.level + 0.1),
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=8,
            color=THEME.text,
            va="bottom",
            annotation_clip=False,
        )


def _draw_world(axes: Axes, timeline: Timeline) -> None:
    times, sizes = world(timeline)
    most = max(1, *sizes)
    axes.fill_between(times, sizes, step="post", color=THEME.lines[0], alpha=0.3, linewidth=0)
    axes.step(times, sizes, where="post", color=THEME.lines[0], linewidth=1.6)
    for begin, end, text, raised in labelled_pauses(timeline):
        axes.axvspan(begin, end, color=THEME.ground, linewidth=0)
        axes.axvspan(begin, end, color=THEME.lines[5], alpha=0.15, linewidth=0)
        height = most * (1.24 if raised else 1.06)
        half = max(1.0, timeline.now - timeline.began) * (len(text) + 1) / 2 / CHARACTERS
        middle = min(max((begin + end) / 2, half), timeline.now - timeline.began - half)
        label = axes.text(middle, height, text, ha="center", fontsize=8, color=THEME.lines[5], zorder=5)
        label.set_bbox(dict(LABEL_BOX))
    for rdzv in timeline.rendezvous:
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": THEME.text}
        axes.annotate(f"{rdzv.number}", (rdzv.time - timeline.began, 0), xytext=(3, 3), **style)
    axes.set(ylabel="world size", ylim=(0, most * 1.46))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _style(kind: str) -> dict[str, Any]:
    colour, hatch, alpha = STYLES[kind]
    return {"facecolor": colour, "edgecolor": THEME.ground, "hatch": hatch, "alpha": alpha, "linewidth": 0}


def _draw_lanes(axes: Axes, worker_lanes: list[tuple[str, list[tuple[str, float, float]]]]) -> None:
    for index, (_, spans) in enumerate(worker_lanes):
        for kind, begin, end in spans:
            axes.broken_barh([(begin, end - begin)], (index - 0.36, 0.72), **_style(kind))
    names = [worker for worker, _ in worker_lanes]
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    kinds = [kind for kind in STYLES if any(span[0] == kind for _, spans in worker_lanes for span in spans)]
    for kind in kinds:
        axes.fill([], [], label=kind, **_style(kind))
    if kinds:
        axes.legend(**LEGEND)


def _draw_loss(axes: Axes, timeline: Timeline) -> None:
    steps = [step for step in timeline.steps if step.loss is not None]
    if not steps:
        axes.text(0.5, 0.5, "no steps reported yet", ha="center", va="center", transform=axes.transAxes)
    for begin, end, _ in pauses(timeline):
        axes.axvspan(begin, end, color=THEME.lines[5], alpha=0.15, linewidth=0)
    for segment in segments(steps, [timeline.began + end for _, end, _ in pauses(timeline)]):
        times = [step.time - timeline.began for step in segment]
        losses = [math.nan if step.loss is None else step.loss for step in segment]
        axes.plot(times, losses, color=THEME.lines[3], linewidth=1.4)
        points = zip(times, losses, segment, strict=True)
        repeated = [(time, loss) for time, loss, step in points if step.repeated]
        if repeated:
            axes.axvspan(repeated[0][0], repeated[-1][0], color=THEME.lines[4], alpha=0.25, linewidth=0)
            axes.plot(*zip(*repeated, strict=True), "o", color=THEME.lines[4], markersize=3.5)
    if any(step.repeated for step in steps):
        axes.plot([], [], "o", color=THEME.lines[4], markersize=3.5, label="repeated step")
        axes.legend(**LEGEND)
    axes.set(ylabel="loss")


def segments(steps: Iterable[Step], ends: Sequence[float]) -> Iterator[list[Step]]:
    """Split steps at pauses, which end at ``ends``, and where the run resumed from an earlier step."""
    segment: list[Step] = []
    for step in steps:
        paused = segment and any(segment[-1].time < end - 0.001 <= step.time for end in ends)
        if segment and (paused or step.number <= segment[-1].number):
            yield segment
            segment = []
        segment.append(step)
    if segment:
        yield segment
