"""A run as a static picture: loss by rank and smoothed, images a second, and the world size as a band."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kitlib.metrics.training import Frame, TrainingMetrics
from kitlib.widgets import palette

MOST_IN_LEGEND = 8
THEME = palette.LIGHT  # a picture that is saved has a ground of its own


def draw(training: TrainingMetrics, *, title: str) -> Figure:
    """Return the figure of a run's curves."""
    frame = training.frame()
    with_rate = bool(np.isfinite(frame.rate).any())
    heights = [3.0, 0.45, *([1.2] * with_rate)]
    figure = Figure(figsize=(7.5, 1 + sum(heights)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    title = f"{title} (synthetic data)" if training.synthetic else title
    draw_loss(axes[0], frame, title=title)
    most = int(frame.world.max(initial=1))
    axes[1].fill_between(frame.steps, frame.world, step="post", color=THEME.lines[0], alpha=0.35, linewidth=0)
    axes[1].set(ylabel="ranks", ylim=(0, most * 1.15), yticks=[0, most])
    if with_rate:
        axes[2].plot(frame.steps, frame.rate, color=THEME.lines[2], linewidth=1.4)
        axes[2].set(ylabel="images/s", ylim=(0, np.nanmax(frame.rate) * 1.1))
    for each in axes:
        tidy(each)
    axes[-1].set(xlabel="step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(axes)
    return figure


def draw_loss(axes: Axes, frame: Frame, *, title: str) -> None:
    """Draw the loss of every rank, and the smoothed mean over them."""
    few = len(frame.ranks) <= MOST_IN_LEGEND
    for rank, values in zip(frame.ranks, frame.loss, strict=True):
        there = np.isfinite(values)
        colour, dashes = palette.style(rank)
        axes.plot(
            frame.steps[there],
            values[there],
            label=f"rank {rank}" if few else None,
            color=THEME.lines[colour],
            linestyle=(0, dashes) if few and dashes else "-",
            linewidth=1.1 if few else 0.6,
            alpha=0.75 if few else 0.45,
        )
    if frame.ranks:
        axes.plot(frame.steps, frame.smooth, label="smoothed", color=THEME.main, linewidth=1.9)
        axes.legend(frameon=False, ncols=2 if few else 1, fontsize="small")
    else:
        axes.text(0.5, 0.5, "no steps were reported yet", ha="center", va="center", transform=axes.transAxes)
    axes.set(ylabel="loss")
    axes.set_title(title, loc="left", color=THEME.text)


def tidy(axes: Axes) -> None:
    """Take away what is no data."""
    axes.grid(color=THEME.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(THEME.grid)
    axes.tick_params(colors=THEME.text, length=0)
    axes.xaxis.label.set_color(THEME.text)
    axes.yaxis.label.set_color(THEME.text)
