"""Static plots, as `Picture`: a run, its loss, the nodes' usage, placement of pods, and sample images."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from kitlib.display.tables import printable
from kitlib.k8s.pods import display_name
from kitlib.metrics.curves import Curves, TrainingMetrics
from kitlib.metrics.events import Event
from kitlib.metrics.node_usage import UsageHistory
from kitlib.metrics.placement import LEAVING, RUNNING, STARTING, WAITING, Placement, PodInterval, short

MAX_IN_LEGEND, LONGEST_LABEL = 8, 200
COLUMNS = 8  # of a grid of images
USAGE = {"cpu": "CPU, %", "memory": "memory, %", "gpus": "GPUs requested, %", "gpu": "GPUs in use, %"}

# Hues after Okabe and Ito (2008), darkened or lightened to the contrast of text, 4.5 (WCAG 2.2, 1.4.3).
LINES_LIGHT = ("#0063a6", "#b34700", "#007352", "#9c3483", "#7a5b00", "#b00020", "#00707f", "#4d4d4d")
LINES_DARK = ("#66b5ff", "#ff9d5c", "#3fd6a0", "#f09fdc", "#e8c840", "#ff8c9b", "#52d3e6", "#c4c4c4")
# Lengths of dashes and gaps in pixels, to distinguish lines without colours; the first line is solid.
DASHES = ((), (6, 3), (2, 3), (9, 3, 2, 3), (12, 4), (4, 2, 4, 6), (1, 2), (9, 3, 2, 3, 2, 3))


@dataclass(frozen=True)
class Theme:
    """The colours for a light or a dark background.

    Attributes:
        ground: The background, if the front end does not set one.
        text: Colour of text and axes.
        lines: Colours of ranks and nodes, in turn.
        main: Colour of the most important line.
        grid: Colour of grid lines.
        good, bad, busy: Colours of phases.
    """

    ground: str
    text: str
    lines: tuple[str, ...]
    main: str
    grid: str
    good: str
    bad: str
    busy: str


LIGHT = Theme("#ffffff", "#333333", LINES_LIGHT, "#111111", "#e3e3e3", "#00703c", "#b3001b", "#0063a6")
DARK = Theme("#111111", "#d6d6d6", LINES_DARK, "#ffffff", "#3a3a3a", "#4bd68d", "#ff8c9b", "#66b5ff")
THEME = LIGHT  # of static plots, which have their own background


def style(index: int) -> tuple[int, tuple[int, ...]]:
    """Return the colour's index and the dashes of a line; the first sixty-four lines all differ."""
    return index % len(LINES_LIGHT), DASHES[(index + index // len(LINES_LIGHT)) % len(DASHES)]


class Picture:
    """A figure that notebooks display, with an alternative text for terminals."""

    def __init__(self, figure: Figure, alt: str) -> None:
        for text in figure.findobj(Text):  # labels are untrusted text, not formulas
            text.set_parse_math(False)
            if text.get_text() != (label := _label(text.get_text())):
                text.set_text(label)
        self.figure = figure
        self.alt = alt

    def save(self, path: str | Path) -> Path:
        """Save it as PNG, SVG or PDF, by the path's suffix."""
        self.figure.savefig(path, bbox_inches="tight")
        return Path(path)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    def bundle(self) -> dict[str, str]:
        """Encode it as a MIME bundle."""
        return {"image/png": base64.b64encode(self._repr_png_()).decode(), "text/plain": self.alt}

    def __repr__(self) -> str:
        return self.alt


def _label(text: str) -> str:
    """Truncate a label, and escape control characters."""
    label = printable(text)
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"


def tidy(axes: Axes) -> None:
    """Style axes: grid lines, no ticks, no top and right spines."""
    axes.grid(color=THEME.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(THEME.grid)
    axes.tick_params(colors=THEME.text, length=0)
    axes.xaxis.label.set_color(THEME.text)
    axes.yaxis.label.set_color(THEME.text)


# A run


def plot_loss(events: Iterable[Event], *, title: str) -> Picture:
    """Plot the loss by rank, from the ``step`` events of a run; steps without a finite loss are left out."""
    training = TrainingMetrics(events)
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    _draw_loss(axes, training, title=title)
    tidy(axes)
    axes.set(xlabel="step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not training.ranks:
        return Picture(figure, "Loss: no steps reported yet")
    first, last = training.first_and_last_loss()
    ranks, steps = len(training.ranks), training.last_step
    alt = f"Loss of {ranks} ranks over {steps} steps: {first:.3g} at first, {last:.3g} at last"
    if validation := training.validation_losses():
        alt += f"; validation loss {validation[0][1]:.3g} and {validation[-1][1]:.3g}"
    return Picture(figure, alt)


def plot_run(training: TrainingMetrics, *, title: str, alt: str) -> Picture:
    """Plot a run: loss by rank and smoothed, world size, and images a second."""
    frame = training.frame()
    with_rate = bool(np.isfinite(frame.rate).any())
    heights = [3.0, 0.45, *([1.2] * with_rate)]
    figure = Figure(figsize=(7.5, 1 + sum(heights)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    _draw_loss(axes[0], training, title=title, frame=frame)
    most = int(frame.world.max(initial=1))
    axes[1].fill_between(frame.steps, frame.world, step="post", color=THEME.lines[0], alpha=0.35, linewidth=0)
    axes[1].set(ylabel="ranks", ylim=(0, most * 1.15), yticks=[0, most])
    if with_rate:
        axes[2].plot(frame.steps, frame.rate, color=THEME.lines[2], linewidth=1.4)
        axes[2].set(ylabel="images/s", ylim=(0, np.nanmax(frame.rate) * 1.1))
    for axis in axes:
        tidy(axis)
    axes[-1].set(xlabel="step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(axes)
    return Picture(figure, alt)


def _draw_loss(axes: Axes, training: TrainingMetrics, *, title: str, frame: Curves | None = None) -> None:
    frame = training.frame() if frame is None else frame
    few = len(frame.ranks) <= MAX_IN_LEGEND
    for rank, values in zip(frame.ranks, frame.loss, strict=True):
        finite = np.isfinite(values)
        colour, dashes = style(rank)
        axes.plot(
            frame.steps[finite],
            values[finite],
            label=display_name(training.replica(rank)) if few else None,
            color=THEME.lines[colour],
            linestyle=(0, dashes) if few and dashes else "-",
            linewidth=1.1 if few else 0.6,
            alpha=0.75 if few else 0.45,
        )
    if frame.ranks:
        axes.plot(frame.steps, frame.smooth, label="smoothed", color=THEME.main, linewidth=1.9)
        if validation := training.validation_losses():
            steps, losses = zip(*validation, strict=True)
            axes.plot(steps, losses, "o--", label="validation", color=THEME.bad, linewidth=1.4, markersize=4)
        axes.legend(frameon=False, ncols=2 if few else 1, fontsize="small")
    else:
        axes.text(0.5, 0.5, "no steps reported yet", ha="center", va="center", transform=axes.transAxes)
    axes.set(ylabel="loss")
    title = f"{title} (synthetic data)" if training.synthetic else title
    axes.set_title(title, loc="left", color=THEME.text)


# A cluster


def plot_usage(history: UsageHistory, *, title: str, alt: str) -> Picture:
    """Plot the share of CPU, memory and GPUs in use by node, over time."""
    shares = {kind: history.percent(kind) for kind in USAGE}
    kinds = [kind for kind in USAGE if kind in ("cpu", "memory") or np.isfinite(shares[kind]).any()]
    figure = Figure(figsize=(7.5, 1 + 1.9 * len(kinds)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(len(kinds), sharex=True)
    seconds = np.array(history.times) - (history.times[0] if history.times else 0)
    few = len(history.nodes) <= MAX_IN_LEGEND
    for axis, kind in zip(axes, kinds, strict=True):
        for index, (name, values) in enumerate(zip(history.nodes, shares[kind], strict=True)):
            colour, dashes = style(index)
            line = (0, dashes) if few and dashes else "-"
            axis.plot(seconds, values, label=name, color=THEME.lines[colour], linestyle=line, linewidth=1.4)
        tidy(axis)
        top = np.nanmax(shares[kind]) if np.isfinite(shares[kind]).any() else 0
        limit = max(10, 1.3 * top) if kind == "memory" else max(100, 1.05 * top)
        axis.set(ylabel=USAGE[kind], ylim=(0, limit))
    if few and history.nodes:
        axes[0].legend(frameon=False, ncols=4, fontsize="small")
    axes[0].set_title(title, loc="left", color=THEME.text)
    axes[-1].set(xlabel="seconds")
    figure.align_ylabels(axes)
    return Picture(figure, alt)


# Placement: a lane for each node, with Pending pods above and the loss below

LANE, GAP = 0.8, 0.35
PENDING = "Pending"
STYLES: dict[str, dict[str, Any]] = {
    WAITING: {"alpha": 0.25, "hatch": "////"},
    STARTING: {"alpha": 0.45},
    RUNNING: {"alpha": 0.9},
    LEAVING: {"alpha": 0.9, "hatch": "xxxx"},
}


def plot_placement(placement: Placement, *, title: str, alt: str, began: float, now: float) -> Picture:
    """Plot which pods ran on which node, and when; ``began`` and ``now`` are seconds since 1970."""
    lanes = {
        PENDING: [
            interval
            for interval in placement.intervals
            # Every pod waits for milliseconds.
            if interval.state == WAITING and (interval.ended or now) - interval.began > 0.1
        ]
    }
    for node in placement.nodes:
        lanes[node] = [interval for interval in placement.intervals if interval.node == node]
    rows = {lane: _stack(intervals, now) for lane, intervals in lanes.items()}
    groups = list(dict.fromkeys(interval.group for interval in placement.intervals))
    colours = {group: THEME.lines[index % len(THEME.lines)] for index, group in enumerate(groups)}
    height = 0.22 * sum(1 + max(row, default=0) for row in rows.values()) + 0.1 * len(rows) + 0.6
    heights = [max(1.6, height), *([1.5] * bool(placement.losses))]
    figure = Figure(figsize=(8.5, 0.8 + sum(heights)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    _draw_intervals(axes[0], lanes, rows, colours, began=began, now=now)
    axes[0].set_title(title, loc="left", color=THEME.text)
    for group, losses in placement.losses.items():
        times, values = zip(*sorted(losses), strict=True)
        axes[1].plot([time - began for time in times], values, color=colours.get(group, THEME.main), lw=1.4)
        axes[1].set(ylabel="loss")
    for axis in axes:
        tidy(axis)
    axes[-1].set(xlabel="seconds", xlim=(0, max(1.0, now - began)))
    return Picture(figure, alt)


def _draw_intervals(
    axes: Axes,
    lanes: dict[str, list[PodInterval]],
    rows: dict[str, list[int]],
    colours: dict[str, str],
    *,
    began: float,
    now: float,
) -> None:
    top, ticks = 0.0, []
    for lane, intervals in lanes.items():
        height = 1 + max(rows[lane], default=0)
        ticks.append(top + height / 2)
        if lane == PENDING:
            axes.axhspan(top - GAP / 2, top + height + GAP / 2, color=THEME.grid, alpha=0.5, linewidth=0)
        for span, row in zip(intervals, rows[lane], strict=True):
            _draw_span(axes, span, top + row + 0.5, colours[span.group], began=began, now=now)
        top += height + GAP
    axes.set(ylim=(top, -GAP), yticks=ticks)
    axes.set_yticklabels(lanes)
    legend = [Patch(color=colour, label=group) for group, colour in colours.items()]
    legend += [Patch(facecolor=THEME.grid, hatch=STYLES[LEAVING]["hatch"], label="terminating")]
    axes.legend(
        handles=legend, frameon=False, fontsize="small", ncols=4, loc="lower right", bbox_to_anchor=(1, 1)
    )


def _draw_span(axes: Axes, span: PodInterval, at: float, colour: str, *, began: float, now: float) -> None:
    start, end = max(span.began, began), now if span.ended is None else span.ended
    style = STYLES[span.state] | {"facecolor": colour, "edgecolor": THEME.ground, "linewidth": 0.6}
    axes.barh(at, end - start, left=start - began, height=LANE, **style)
    name = short(span.pod)
    fits = end - start > 0.012 * (1 + len(name)) * (now - began)
    if name and fits and span.state in (RUNNING, WAITING):
        text_colour = THEME.ground if span.state == RUNNING else THEME.text
        position = ((start + end) / 2 - began, at)
        axes.text(*position, name, ha="center", va="center", fontsize=7, color=text_colour)


def _stack(intervals: Sequence[PodInterval], now: float) -> list[int]:
    """Assign each interval a row of its lane, so that none overlap, and a pod keeps its row."""
    rows: list[int] = []
    last: list[tuple[float, str]] = []  # end and uid of the last interval, by row
    for span in intervals:
        free = (row for row, (end, _) in enumerate(last) if end <= span.began)
        own = next((row for row, (_, uid) in enumerate(last) if uid == span.uid), None)
        row = own if own is not None else next(free, len(last))
        last[row : row + 1] = [(now if span.ended is None else span.ended, span.uid)]
        rows.append(row)
    return rows


# Images


def plot_images(
    images: "Sequence[np.ndarray[Any, Any]]", labels: Sequence[str], *, title: str, synthetic: bool
) -> Picture:
    """Plot a grid of images, (height, width) or (height, width, 3), each under its label."""
    rows = -(-len(images) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * 1.05, rows * 1.25 + 0.5))
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flat
    top = 1 - 0.65 / figure.get_figheight()
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=top, hspace=0.35)
    for panel in panels:
        panel.axis("off")
    for panel, image, label in zip(figure.axes, images, labels, strict=False):
        panel.imshow(image, cmap="gray_r" if image.ndim == 2 else None)
        panel.set_title(label if len(label) <= 14 else f"{label[:13]}…", fontsize=8)
    alt = f"{title}: synthetic images" if synthetic else title
    figure.suptitle(alt, fontsize=10, color="firebrick" if synthetic else None)
    classes = ", ".join(sorted(set(labels))[:12])
    return Picture(figure, f"{alt}; {len(images)} images, of the classes {classes}")
