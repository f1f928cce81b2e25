"""A run's workers over time: its timeline, its dashboard, and the speed-up of several runs.

`kitlib.Run` loads the first two by the entry points ``kitlib.runs``; ``kit.speed_up`` is one of
``kitlib.names``. Elastic training itself is in ``trainers/elastic.py`` and `kitlib.jobs.torch_elastic`.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING

from kitlib.clusters.local import LocalCluster
from kitlib.display.signatures import checked
from kitlib.display.tables import parse_time
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.events import namespace_events
from kitlib.k8s.manifests import Object
from kitlib.runs.logs import LogCache
from kitlib.runs.reports import Reports
from kitlib.runs.run import Run
from trainyard_kit.elastic_lab.speed_up import StepTimes, step_time
from trainyard_kit.elastic_lab.timeline import RunHistory, Timeline

if TYPE_CHECKING:
    from kitlib.widgets.plots import Picture
    from trainyard_kit.elastic_lab.dashboard import Dashboard


class RunTimeline(Timeline):
    """A run's timeline with its plot; built by :meth:`kitlib.Run.timeline`."""

    @classmethod
    def of(cls, timeline: Timeline) -> "RunTimeline":
        """Add the plot to a timeline."""
        return cls(**{field.name: getattr(timeline, field.name) for field in fields(timeline)})

    def plot(self) -> "Picture":
        """Plot world size, each worker's states, loss, and the cost of each change.

        Example:
            >>> run.timeline().plot().save("timeline.png")
        """
        from trainyard_kit.elastic_lab.timeline_plot import plot_timeline  # matplotlib takes half a second

        return plot_timeline(self)


class SpeedUp(StepTimes):
    """Speed-up and efficiency of several runs, with their plot."""

    def plot(self) -> "Picture":
        """Plot the parts of a step's time, and the efficiency by number of workers."""
        from trainyard_kit.elastic_lab.speed_up_plot import plot_speed_up  # matplotlib takes half a second

        return plot_speed_up(self)


def read_timeline(cache: LogCache, listed: Collection[Object], *, finished: bool) -> RunTimeline:
    """Build the timeline from the logs of these pods, the cached ones of deleted pods, and the Events."""
    objects = cache.objects
    # Before the logs, because reading one from an unreachable node takes long.
    now, events = time.time(), list(namespace_events(objects.kube))
    cache.refresh(listed)
    history = RunHistory(objects.name)
    for pod, lines in cache.logs.values():
        node = pod["spec"].get("nodeName", "")
        history.add_lines(pod["metadata"]["name"], node, (line.text for line in lines))
    ends = (parse_time(at).timestamp() for pod in listed if (at := pods.finished_at(pod)))
    if finished:
        now = max(ends, default=now)
    else:
        now = max([now, *(event.time for events_ in history.events.values() for event in events_)])
    return RunTimeline.of(history.timeline(events, now=now, store=[f"{objects.name}-store"]))


def dashboard(run: Run) -> "Dashboard":
    """Start the dashboard of a run; only for local clusters it has buttons for nodes."""
    from trainyard_kit.elastic_lab.dashboard import Dashboard  # numpy and matplotlib take half a second

    return Dashboard(
        run,
        states=run.objects.watch,
        replicas=lambda: job_kinds.limits(run.objects.main()),
        cluster=run.cluster if isinstance(run.cluster, LocalCluster) else None,
    ).start()


@checked
def speed_up(runs: Iterable[Reports]) -> SpeedUp:
    """Compare runs of one trainer on different numbers of workers.

    Args:
        runs: Completed runs whose trainer logs ``step`` events and a ``batch_size``. The baseline is the
            one with the fewest workers.

    Returns:
        The speed-ups, displayed as a table, with ``.times`` and ``.plot()``.

    Raises:
        BadInput: A run logged too few steps.

    Example:
        >>> kit.speed_up([single, run])
        WORKERS  IMAGES A WORKER  MS A STEP  IMAGES/S  SPEED-UP  EFFICIENCY %
        1        128              516.2      248.0     1.0       100
        4        32               137.3      932.3     3.76      94
    """
    times = (step_time(run.reports(), run=run.name) for run in runs)
    return SpeedUp(tuple(sorted(times, key=lambda time: time.workers)))
