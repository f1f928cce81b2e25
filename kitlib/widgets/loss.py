"""The loss of every rank over the steps, as a static picture."""

from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kitlib.metrics.events import Event
from kitlib.metrics.training import TrainingMetrics
from kitlib.widgets import run_picture
from kitlib.widgets.picture import Picture


def picture(events: Iterable[Event], *, title: str) -> Picture:
    """Return the loss by rank, from the ``step`` events of a run.

    Steps whose loss is missing or no number are left out; a line that ends early shows a rank that stopped.
    """
    training = TrainingMetrics(events)
    frame = training.frame()
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    title = f"{title} (synthetic data)" if training.synthetic else title
    run_picture.draw_loss(axes, frame, title=title)
    run_picture.tidy(axes)
    axes.set(xlabel="step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return Picture(figure, _words(training))


def _words(training: TrainingMetrics) -> str:
    if not training.ranks:
        return "Loss: no steps were reported yet"
    first, last = training.first_and_last_loss()
    ranks, steps = len(training.ranks), training.last_step
    return f"Loss of {ranks} ranks over {steps} steps: {first:.3g} at first, {last:.3g} at last"
