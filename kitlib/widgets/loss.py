"""The loss of every rank over the steps, as a static picture."""

from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kitlib.metrics import Event
from kitlib.widgets.picture import Picture

MOST_IN_LEGEND = 8


def picture(events: Iterable[Event], *, title: str) -> Picture:
    """Return the loss by rank, from the ``step`` events of a run.

    Steps whose loss is missing or no number are left out; a line that ends early shows a rank that stopped.
    """
    curves: dict[int, list[tuple[int, float]]] = {}
    for each in events:
        step, loss = each.fields.get("step"), each.fields.get("loss")
        if each.event == "step" and isinstance(step, int) and isinstance(loss, int | float):
            curves.setdefault(each.rank, []).append((step, float(loss)))
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for rank in sorted(curves):
        axes.plot(*zip(*sorted(curves[rank]), strict=True), label=f"rank {rank}", linewidth=1.4, alpha=0.85)
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if not curves:
        axes.text(0.5, 0.5, "no steps were reported yet", ha="center", va="center", transform=axes.transAxes)
    elif len(curves) <= MOST_IN_LEGEND:
        axes.legend(frameon=False)
    return Picture(figure, _words(curves))


def _words(curves: dict[int, list[tuple[int, float]]]) -> str:
    if not curves:
        return "Loss: no steps were reported yet"
    first = sum(min(curve)[1] for curve in curves.values()) / len(curves)
    last = sum(max(curve)[1] for curve in curves.values()) / len(curves)
    steps = max(max(curve)[0] for curve in curves.values())
    return f"Loss of {len(curves)} ranks over {steps} steps: {first:.3g} at first, {last:.3g} at last"
