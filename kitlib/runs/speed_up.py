"""Runs of one trainer on different numbers of workers, compared by the time of a step."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kitlib.metrics import speed_up as metrics
from kitlib.runs.reports import Reports

if TYPE_CHECKING:
    from kitlib.widgets.plots import Picture


class SpeedUp(metrics.StepTimes):
    """Speed-up and efficiency of several runs, with their plot."""

    def plot(self) -> "Picture":
        """Plot what a step's time consists of, and the efficiency by number of workers."""
        from kitlib.widgets.speed_up_plot import plot_speed_up  # matplotlib takes half a second

        return plot_speed_up(self)


def speed_up(runs: Iterable[Reports]) -> SpeedUp:
    """Compare runs of one trainer on different numbers of workers.

    Args:
        runs: Completed ones, whose trainer logs ``step`` events and a ``batch_size``. They are compared with
            the one that has the fewest workers.

    Returns:
        What shows itself as a table, and has ``.times`` and its picture, ``.plot()``.

    Raises:
        BadInput: A run logged too few steps.

    Example:
        >>> kit.speed_up([single, run])
        WORKERS  IMAGES A WORKER  MS A STEP  IMAGES/S  SPEED-UP  EFFICIENCY %
        1        128              516.2      248.0     1.0       100
        4        32               137.3      932.3     3.76      94
    """
    times = (metrics.step_time(run.reports(), run=run.name) for run in runs)
    return SpeedUp(tuple(sorted(times, key=lambda each: each.workers)))
