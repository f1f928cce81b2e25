"""Speed-up of runs as a static plot: the parts of a step's time, and the efficiency."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kitlib.widgets.plots import THEME, Picture, tidy
from trainyard_kit.elastic_lab.speed_up import StepTimes

STYLES = (  # label, colour, hatching: distinguishable without colours
    ("computing (simulated)", THEME.lines[0], None),
    ("not divided", THEME.lines[7], "...."),
    ("waiting for cores", THEME.lines[2], "xxxx"),
    ("the rest: exchange, waiting", THEME.lines[1], "////"),
)


def plot_speed_up(speed_up: StepTimes) -> Picture:
    """Plot the parts of a step in milliseconds, and the efficiency in percent, by number of workers."""
    figure = Figure(figsize=(9, 3.4), layout="constrained", facecolor=THEME.ground)
    parts, curve = figure.subplots(1, 2)
    names = [str(time.workers) for time in speed_up.times]
    _draw_parts(parts, speed_up, names)
    _draw_efficiency(curve, speed_up, names)
    kind = "simulated accelerator" if speed_up.simulated else speed_up.first.device
    for axes, title in ((parts, f"A step, {kind}"), (curve, "Efficiency")):
        axes.set_title(title, loc="left", color=THEME.text)
        axes.set_xlabel("workers")
        tidy(axes)
    reached = (f"{speed_up.speed_up(time):.2f} with {time.workers}" for time in speed_up.times)
    return Picture(figure, f"Speed-up, {kind}: {', '.join(reached)}")


def _draw_parts(axes: Axes, speed_up: StepTimes, names: Sequence[str]) -> None:
    if not speed_up.simulated:
        axes.bar(names, [time.seconds * 1e3 for time in speed_up.times], color=THEME.lines[0], width=0.6)
    else:
        times = speed_up.times
        parts = (
            [time.computing or 0.0 for time in times],
            [speed_up.not_divided] * len(times),
            [speed_up.waiting_for_cores(time) for time in times],
            [speed_up.rest(time) for time in times],
        )
        bottom = [0.0] * len(times)
        for (label, colour, hatch), seconds in zip(STYLES, parts, strict=True):
            heights = [second * 1e3 for second in seconds]
            style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": THEME.ground, "width": 0.6}
            axes.bar(names, heights, bottom=bottom, label=label if any(heights) else None, **style)
            bottom = [base + height for base, height in zip(bottom, heights, strict=True)]
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    axes.set_ylabel("ms")


def _draw_efficiency(axes: Axes, speed_up: StepTimes, names: Sequence[str]) -> None:
    measured = [100 * speed_up.efficiency(time) for time in speed_up.times]
    axes.plot(names, [100] * len(names), color=THEME.text, linestyle=":", label="ideal")
    if speed_up.simulated:
        predicted = [100 * speed_up.amdahl(time) for time in speed_up.times]
        axes.plot(names, predicted, color=THEME.lines[1], linestyle="--", marker="s", label="by Amdahl's law")
        axes.fill_between(names, measured, predicted, color=THEME.lines[1], alpha=0.2, label="lost beyond it")
    axes.plot(names, measured, color=THEME.lines[0], marker="o", label="measured")
    for name, percent, time in zip(names, measured, speed_up.times, strict=True):
        speed = f"×{speed_up.speed_up(time):.2f}"
        axes.annotate(speed, (name, percent), (0, -14), textcoords="offset points", ha="center", fontsize=9)
    axes.set(ylabel="%", ylim=(0, 115))
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
