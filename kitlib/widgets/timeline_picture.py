"""A run's timeline as a static picture: world size, what each worker did, and the loss, over seconds.

What is drawn where, is in `timeline_marks`; the live picture of the same is in `static/timeline.js`.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kitlib.metrics.timeline import Timeline
from kitlib.widgets import palette
from kitlib.widgets.picture import Picture
from kitlib.widgets.run_picture import tidy
from kitlib.widgets.timeline_marks import Mark, labelled, lanes, pauses, world

THEME = palette.LIGHT  # a picture that is saved has a ground of its own
LOOKS = {  # colour, hatching and opacity: told apart without colours as well
    "training": (THEME.lines[0], None, 0.85),
    "waiting": (THEME.lines[1], "////", 0.45),
    "hanging": (THEME.lines[5], "xxxx", 0.45),
    "unknown": (THEME.lines[7], "....", 0.3),
}
WIDTH = 10.0
LETTERS = 118  # so many of them fit into the picture's width


def picture(timeline: Timeline) -> Picture:
    """Return the picture of a timeline."""
    return Picture(draw(timeline), f"Run {timeline.name}: {timeline.words}; {len(timeline.rows)} changes")


def draw(timeline: Timeline) -> Figure:
    """Return the figure: strips over one axis of time."""
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
    for each in axes[1:]:
        for mark in marks:
            each.axvline(mark.time, color=THEME.text, linewidth=0.8, linestyle=(0, (2, 2)), alpha=0.7)
        tidy(each)
    axes[3].set(xlabel="seconds", xlim=(0, max(1.0, timeline.now - timeline.began)))
    figure.align_ylabels(axes)
    return figure


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
    for begin, end, words in pauses(timeline):
        axes.axvspan(begin, end, color=THEME.ground, linewidth=0)
        axes.axvspan(begin, end, color=THEME.lines[5], alpha=0.15, linewidth=0)
        axes.annotate(words, ((begin + end) / 2, most * 1.06), ha="center", fontsize=8, color=THEME.lines[5])
    for each in timeline.rounds:
        place = (each.time - timeline.began, 0)
        axes.annotate(
            f"{each.number}", place, xytext=(3, 3), textcoords="offset points", fontsize=7, color=THEME.text
        )
    axes.set(ylabel="world size", ylim=(0, most * 1.32))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _draw_lanes(axes: Axes, known: list[tuple[str, list[tuple[str, float, float]]]]) -> None:
    for index, (_, spans) in enumerate(known):
        for kind, begin, end in spans:
            colour, hatch, alpha = LOOKS[kind]
            bar = [(begin, end - begin)]
            axes.broken_barh(
                bar,
                (index - 0.36, 0.72),
                facecolor=colour,
                edgecolor=THEME.ground,
                hatch=hatch,
                alpha=alpha,
                linewidth=0,
            )
    axes.set(
        yticks=range(len(known)), yticklabels=[worker for worker, _ in known], ylim=(len(known) - 0.4, -0.6)
    )
    seen = [kind for kind in LOOKS if any(each[0] == kind for _, spans in known for each in spans)]
    for kind in seen:
        colour, hatch, alpha = LOOKS[kind]
        axes.fill(
            [],
            [],
            facecolor=colour,
            hatch=hatch,
            alpha=alpha,
            edgecolor=THEME.ground,
            linewidth=0,
            label=kind,
        )
    if seen:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _draw_loss(axes: Axes, timeline: Timeline) -> None:
    steps = [each for each in timeline.steps if each.loss is not None]
    if not steps:
        axes.text(0.5, 0.5, "no steps were reported yet", ha="center", va="center", transform=axes.transAxes)
    for run in _stretches(steps):
        times = [each.time - timeline.began for each in run]
        axes.plot(times, [each.loss for each in run], color=THEME.lines[3], linewidth=1.4)
        again = [each.time - timeline.began for each in run if each.repeated]
        if again:
            axes.axvspan(min(again), max(again), color=THEME.lines[4], alpha=0.25, linewidth=0)
            losses = [each.loss for each in run if each.repeated]
            axes.plot(again, losses, "o", color=THEME.lines[4], markersize=3.5)
    if any(each.repeated for each in steps):
        axes.plot([], [], "o", color=THEME.lines[4], markersize=3.5, label="step done again")
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.05))
    axes.set(ylabel="loss")


def _stretches(steps):
    """Yield steps as they follow each other: a step back begins a new line."""
    run = []
    for each in steps:
        if run and each.number <= run[-1].number:
            yield run
            run = []
        run.append(each)
    if run:
        yield run
