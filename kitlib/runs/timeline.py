"""A run's timeline, read from its pods' logs and the Events of its namespace."""

import time
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING

from kitlib.display.tables import parse_time
from kitlib.k8s import pods
from kitlib.k8s.events import namespace_events
from kitlib.k8s.manifests import Object
from kitlib.metrics.timeline import RunHistory, Timeline
from kitlib.runs.logs import LogCache

if TYPE_CHECKING:
    from kitlib.widgets.plots import Picture


class RunTimeline(Timeline):
    """A run's timeline with its plot; built by :meth:`kitlib.Run.timeline`."""

    @classmethod
    def of(cls, timeline: Timeline) -> "RunTimeline":
        """Add the plot to a timeline."""
        return cls(**{each.name: getattr(timeline, each.name) for each in fields(timeline)})

    def plot(self) -> "Picture":
        """Plot world size, each worker's states, loss, and the cost of each change.

        Example:
            >>> run.timeline().plot().save("timeline.png")
        """
        from kitlib.widgets.timeline_plot import plot_timeline  # matplotlib takes half a second

        return plot_timeline(self)


def read_timeline(cache: LogCache, there: Collection[Object], *, finished: bool) -> RunTimeline:
    """Build the timeline from the logs of these pods, those kept of deleted ones, and the Events."""
    objects = cache.objects
    cache.refresh(there)
    history = RunHistory(objects.name)
    for pod, lines in cache.logs.values():
        node = pod["spec"].get("nodeName", "")
        history.add_lines(pod["metadata"]["name"], node, (line.text for line in lines))
    ends = (parse_time(at).timestamp() for pod in there if (at := pods.finished_at(pod)))
    ended = max(ends, default=0.0) if finished else 0.0
    found = namespace_events(objects.kube)
    timeline = history.timeline(found, now=ended or time.time(), store=[f"{objects.name}-store"])
    return RunTimeline.of(timeline)
