"""Plot results: bars for this kit and the peer with a dot per round, and an overview of all ratios.

Each is saved twice, for a light and for a dark page, as SVG.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from bench import timelines
from bench.results import MISSED, Result, number
from kitlib.widgets.plots import DARK, LIGHT, Theme

WIDTH, ROW, MARGIN = 8.0, 0.62, 0.55  # inches: of a plot, of each bar, of what is above and below them
SETTINGS: dict[RcKeyType, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "trainyard",
    "font.family": "sans-serif",
    "font.size": 10,
}
THEMES = {"": LIGHT, "-dark": DARK}


def save(results: Sequence[Result], path: Path) -> None:
    """Save a plot of a measure's results: value, peer and limit, each on its own axis.

    Args:
        results: Of one measure.
        path: Without the suffixes ``.svg`` and ``-dark.svg``.
    """

    def draw(figure: Figure, theme: Theme) -> None:
        rows = figure.subplots(len(results), squeeze=False)[:, 0]
        for axes, result in zip(rows, results, strict=True):
            _bars(axes, result, theme)

    _save(draw, path, height=len(results) * (2 * ROW + MARGIN))


def save_overview(results: Iterable[Result], folder: Path) -> None:
    """Save a plot of each figure relative to its goal; values below 1 meet it.

    Args:
        results: Those without a goal, or without a peer that it asks for, are left out.
        folder: Where ``overview.svg`` goes.
    """
    shares_of = [(result, share) for result in results if (share := result.share_of_goal) is not None]
    shares_of.sort(key=lambda pair: pair[1])
    judged, shares = [result for result, _ in shares_of], [share for _, share in shares_of]

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        colours = [theme.bad if result.verdict == MISSED else theme.good for result in judged]
        axes.hlines(range(len(judged)), 1, shares, colors=colours, linewidth=3)
        axes.scatter(shares, range(len(judged)), color=colours, s=36, zorder=3)
        axes.axvline(1, color=theme.text, linewidth=1)
        axes.set_xscale("log")
        ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5) if min(shares) / 2 < tick < max(shares) * 2]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        labels = [f"{line.what}, beside {line.peer}" if line.theirs else line.what for line in judged]
        axes.set_yticks(range(len(judged)), labels)
        axes.set_xlabel("share of what the goal allows; to the left of 1 it is met")
        _plain(axes, theme)

    _save(draw, folder / "overview", height=1 + 0.3 * len(judged), width=1.5 * WIDTH)


def save_timelines(faults: Mapping[str, Mapping[str, timelines.Timeline]], path: Path) -> None:
    """Save a picture of runs around faults; the path is without suffixes, as for `save`."""
    width, height = timelines.SIZE

    def draw(figure: Figure, theme: Theme) -> None:
        timelines.draw(faults, figure, theme)

    _save(draw, path, height=height, width=width)


def _bars(axes: Axes, result: Result, theme: Theme) -> None:
    sides = [("ours", result.ours, theme.lines[0])]
    if result.theirs:
        sides.append((result.peer, result.theirs, theme.grid))
    for row, (_, samples, colour) in enumerate(sides):
        middle = statistics.median(samples)
        axes.barh(row, middle, height=0.6, color=colour)
        axes.plot(
            samples, [row] * len(samples), "o", color=theme.main, markeredgecolor=theme.ground, markersize=5
        )
    if (goal := result.goal) is not None:
        axes.axvline(goal, color=theme.bad if result.verdict == MISSED else theme.good, linestyle=(0, (4, 2)))
        axes.annotate(
            f"goal {result.limit}",
            (goal, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, 2),
            textcoords="offset points",
            color=theme.text,
            fontsize=8,
        )
    axes.set_yticks(range(len(sides)), [name for name, _, _ in sides])
    axes.set_ylim((len(sides) - 0.5, -0.5) if result.theirs else (0.8, -0.8))
    axes.set_xlim(left=0)
    axes.set_title(
        f"{result.what}: {number(result.value, result.unit)}", loc="left", color=theme.text, pad=16
    )
    axes.set_xlabel(result.unit)
    _plain(axes, theme)


def _plain(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor("none")
    axes.tick_params(colors=theme.text, length=0)
    axes.xaxis.label.set_color(theme.text)
    axes.xaxis.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _save(draw: Callable[[Figure, Theme], None], path: Path, *, height: float, width: float = WIDTH) -> None:
    for suffix, theme in THEMES.items():
        with mpl.rc_context(SETTINGS):
            figure = Figure(figsize=(width, height), layout="constrained", facecolor=theme.ground)
            draw(figure, theme)
            # Tight: a title may be wider than its axes, which makes the picture wider.
            name = f"{path.name}{suffix}.svg"
            figure.savefig(path.with_name(name), metadata={"Date": None}, bbox_inches="tight")
