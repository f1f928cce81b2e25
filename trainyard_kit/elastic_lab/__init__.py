"""What a run's workers do over time: its timeline, its dashboard, and the speed-up of several runs.

`kitlib.Run` finds the first two by the entry points ``kitlib.runs``, ``kit.speed_up`` is one of
``kitlib.names``. Training elastically is not here: that is in ``trainers/elastic.py`` and
`kitlib.jobs.torch_elastic`.
"""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from kitlib.display.tables import parse_time
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.events import namespace_events
from kitlib.k8s.manifests import Object
from kitlib.runs.logs import LogCache
from kitlib.runs.run import Run
from trainyard_kit.elastic_lab.timeline import RunHistory, Timeline

if TYPE_CHECKING:
    from trainyard_kit.elastic_lab.dashboard import Dashboard


def read_timeline(cache: LogCache, listed: Collection[Object], *, finished: bool) -> Timeline:
    """Build the timeline from the logs of these pods, those kept of deleted ones, and the Events."""
    objects = cache.objects
    cache.refresh(listed)
    history = RunHistory(objects.name)
    for pod, lines in cache.logs.values():
        node = pod["spec"].get("nodeName", "")
        history.add_lines(pod["metadata"]["name"], node, (line.text for line in lines))
    ends = (parse_time(at).timestamp() for pod in listed if (at := pods.finished_at(pod)))
    ended = max(ends, default=0.0) if finished else 0.0
    store = [f"{objects.name}-store"]
    return history.timeline(namespace_events(objects.kube), now=ended or time.time(), store=store)


def dashboard(run: Run) -> "Dashboard":
    """Start the dashboard of a run; its buttons switch the nodes of local clusters alone."""
    from trainyard_kit.elastic_lab.dashboard import Dashboard  # numpy and matplotlib take half a second

    return Dashboard(
        run,
        states=run.objects.watch,
        replicas=lambda: job_kinds.limits(run.objects.main()),
        cluster=run.cluster if getattr(run.cluster, "provider", "") == "local" else None,
    ).start()
