"""A cluster as a static picture: the share of CPU, memory and GPUs in use on every node, over time."""

import numpy as np
from matplotlib.figure import Figure

from kitlib.metrics.node_samples import History
from kitlib.widgets import palette
from kitlib.widgets.run_picture import MOST_IN_LEGEND, THEME, tidy

LABELS = {"cpu": "CPU, %", "memory": "memory, %", "gpus": "GPUs asked for, %", "gpu": "GPUs in use, %"}


def draw(history: History, *, title: str) -> Figure:
    """Return the figure of what the nodes use."""
    shares = {kind: history.percent(kind) for kind in LABELS}
    kinds = [kind for kind in LABELS if kind in ("cpu", "memory") or np.isfinite(shares[kind]).any()]
    figure = Figure(figsize=(7.5, 1 + 1.9 * len(kinds)), layout="constrained", facecolor=THEME.ground)
    axes = figure.subplots(len(kinds), sharex=True)
    seconds = np.array(history.times) - (history.times[0] if history.times else 0)
    few = len(history.nodes) <= MOST_IN_LEGEND
    for each, kind in zip(axes, kinds, strict=True):
        for index, (name, values) in enumerate(zip(history.nodes, shares[kind], strict=True)):
            colour, dashes = palette.style(index)
            style = (0, dashes) if few and dashes else "-"
            each.plot(seconds, values, label=name, color=THEME.lines[colour], linestyle=style, linewidth=1.4)
        tidy(each)
        top = np.nanmax(shares[kind]) if np.isfinite(shares[kind]).any() else 0
        each.set(
            ylabel=LABELS[kind], ylim=(0, max(100, 1.05 * top) if kind != "memory" else max(10, 1.3 * top))
        )
    if few and history.nodes:
        axes[0].legend(frameon=False, ncols=4, fontsize="small")
    axes[0].set_title(title, loc="left", color=THEME.text)
    axes[-1].set(xlabel="seconds")
    figure.align_ylabels(axes)
    return figure
