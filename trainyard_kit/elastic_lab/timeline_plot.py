"""A run's timeline as a static plot: world size, what each worker did, and the loss, over seconds.

The geometry (labels, pauses, lanes) is computed here; the live view in ``static/timeline.js`` draws it too.
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

LEVELS = 9  # rows of labels above the strips; what finds no room has its mark alone
LOOKS = {  # colour, hatching and opacity: told apart without colours as well
    "training": (THEME.lines[0], None, 0.85),
    "waiting": (THEME.lines[1], "////", 0.45),
    "hanging": (THEME.lines[5], "xxxx", 0.45),
    "unknown": (THEME.lines[7], "....", 0.3),
}
WIDTH = 10.0
TRAINED_ON = 1.0  # seconds of training after a change, from which on a pause is told from its wait
LETTERS = 118  # so many of them fit into the plot's width
ON_LINES = {"facecolor": THEME.ground, "edgecolor": "none", "pad": 0.8}  # a label that lines would cross
LEGEND = {"frameon": False, "fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1.0, 1.05)}


def plot_timeline(timeline: Timeline) -> Picture:
    """Plot a timeline: strips over one axis of time."""
    known = lanes(timeline)
    marks, levels = labelled(timeline, LETTERS)
    heights = [0.17 * levels + 0.05, 1.1, 0.2 + 0.3 * max(1, len(known)), 1.7]
    figure = Figure(figsize=(WIDTH, 1.2 + sum(heights)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(4, sharex=True, height_ratios=heights)
    axes[0].set_title(timeline.name, loc="left", color=THEME.text)
    _draw_labels(axes[0], marks, levels)
    _draw_world(axes[1], timeline)
    _draw_lanes(axes[2], known)
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
    """A change, and the place of its label.

    Attributes:
        time: Seconds from the beginning.
        label: What happened, and to whom; empty where there is no room to say it.
        level: How far up the label is, so that no label and no line crosses another label.
        begin: Where it begins, in seconds.
    """

    time: float
    label: str
    level: int
    begin: float


def labelled(timeline: Timeline, letters: int) -> tuple[list[Mark], int]:
    """Lay out the marks; also counts the levels that their labels need."""
    letter = max(1.0, timeline.now - timeline.began) / letters  # in seconds
    marks: list[Mark] = []
    for row in reversed(timeline.rows):  # from the right: what begins later stays below
        time, label = row.time - timeline.began, label_of(row)
        begin = max(0.0, min(time, letter * (letters - len(label))))
        end = begin + letter * (len(label) + 2)
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
    """Find when no worker trained, until the first step of each round, with the seconds since the change.

    Where workers trained on after the change, as until a new one has joined, the label says both times.
    """
    spans = []
    for row in timeline.rows:
        if row.round is None or row.steps_lost is None:  # a round's first row alone
            continue
        end = row.time + row.seconds if row.seconds is not None else timeline.now
        before = max((step.time for step in timeline.steps if step.time < end), default=row.time)
        begin = max(row.time, before)  # who is asked to join lets the others train on for a while
        message = f"{row.seconds:.1f} s" if row.seconds is not None else "…"
        if row.seconds is not None and begin - row.time > TRAINED_ON:
            message = f"stood still {end - begin:.1f} s, until {message} after the request"
        spans.append((begin - timeline.began, end - timeline.began, message))
    return spans


def labelled_pauses(timeline: Timeline) -> list[tuple[float, float, str, bool]]:
    """Find the pauses, and whether the label of each stands higher."""
    spans, letter = pauses(timeline), max(1.0, timeline.now - timeline.began) / LETTERS
    return [(*pause, raised) for pause, raised in zip(spans, raise_labels(spans, letter), strict=True)]


def raise_labels(labels: list[tuple[float, float, str]], letter: float) -> Iterator[bool]:
    """Tell which pauses' labels stand higher, as they would cover the one before; a letter in seconds."""
    end = [-math.inf] * 2  # of the last label in each height
    for begin, until, words in labels:
        middle, half = (begin + until) / 2, letter * (len(words) + 1) / 2
        raised = middle - half < end[False] and end[True] <= end[False]
        end[raised] = middle + half
        yield raised


def lanes(timeline: Timeline) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """List what each worker did: kind, begin, end."""
    return [
        (worker, [(span.kind, span.begin - timeline.began, span.end - timeline.began) for span in spans])
        for worker, spans in timeline.states.items()
    ]


def world(timeline: Timeline) -> tuple[list[float], list[int]]:
    """Compute the world size over time: when it changed, and to what; its last value at the end again."""
    times = [
        0.0,
        *(meeting.time - timeline.began for meeting in timeline.rendezvous),
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
    for begin, end, words, raised in labelled_pauses(timeline):
        axes.axvspan(begin, end, color=THEME.ground, linewidth=0)
        axes.axvspan(begin, end, color=THEME.lines[5], alpha=0.15, linewidth=0)
        height = most * (1.24 if raised else 1.06)
        half = max(1.0, timeline.now - timeline.began) * (len(words) + 1) / 2 / LETTERS
        middle = min(max((begin + end) / 2, half), timeline.now - timeline.began - half)
        label = axes.text(middle, height, words, ha="center", fontsize=8, color=THEME.lines[5], zorder=5)
        label.set_bbox(dict(ON_LINES))
    for meeting in timeline.rendezvous:
        place = (meeting.time - timeline.began, 0)
        axes.annotate(
            f"{meeting.number}",
            place,
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=7,
            color=THEME.text,
        )
    axes.set(ylabel="world size", ylim=(0, most * 1.46))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _look(kind: str) -> dict[str, Any]:
    colour, hatch, alpha = LOOKS[kind]
    return {"facecolor": colour, "edgecolor": THEME.ground, "hatch": hatch, "alpha": alpha, "linewidth": 0}


def _draw_lanes(axes: Axes, known: list[tuple[str, list[tuple[str, float, float]]]]) -> None:
    for index, (_, spans) in enumerate(known):
        for kind, begin, end in spans:
            axes.broken_barh([(begin, end - begin)], (index - 0.36, 0.72), **_look(kind))
    axes.set(
        yticks=range(len(known)), yticklabels=[worker for worker, _ in known], ylim=(len(known) - 0.4, -0.6)
    )
    kinds = [kind for kind in LOOKS if any(span[0] == kind for _, spans in known for span in spans)]
    for kind in kinds:
        axes.fill([], [], label=kind, **_look(kind))
    if kinds:
        axes.legend(**LEGEND)


def _draw_loss(axes: Axes, timeline: Timeline) -> None:
    steps = [step for step in timeline.steps if step.loss is not None]
    if not steps:
        axes.text(0.5, 0.5, "no steps were reported yet", ha="center", va="center", transform=axes.transAxes)
    for begin, end, _ in pauses(timeline):
        axes.axvspan(begin, end, color=THEME.lines[5], alpha=0.15, linewidth=0)
    for run in stretches(steps, [timeline.began + end for _, end, _ in pauses(timeline)]):
        times = [step.time - timeline.began for step in run]
        losses = [math.nan if step.loss is None else step.loss for step in run]
        axes.plot(times, losses, color=THEME.lines[3], linewidth=1.4)
        again = [step.time - timeline.began for step in run if step.repeated]
        if again:
            axes.axvspan(min(again), max(again), color=THEME.lines[4], alpha=0.25, linewidth=0)
            marked = [loss for loss, step in zip(losses, run, strict=True) if step.repeated]
            axes.plot(again, marked, "o", color=THEME.lines[4], markersize=3.5)
    if any(step.repeated for step in steps):
        axes.plot([], [], "o", color=THEME.lines[4], markersize=3.5, label="repeated step")
        axes.legend(**LEGEND)
    axes.set(ylabel="loss")


def stretches(steps: Iterable[Step], ends: Sequence[float]) -> Iterator[list[Step]]:
    """Split steps where the run went back to an earlier one, and where no worker trained."""
    run: list[Step] = []
    for step in steps:
        paused = run and any(run[-1].time < end - 0.001 <= step.time for end in ends)
        if run and (paused or step.number <= run[-1].number):
            yield run
            run = []
        run.append(step)
    if run:
        yield run
