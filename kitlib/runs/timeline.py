"""What became of a run: its timeline, read from its cluster, waited for, or shown as it goes.

What the workers' words come to is in `history` and `timeline`, what is kept of pods that are gone in
`log_cache`, the live picture in `widgets.lab`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields

from kitlib.display.progress import Progress
from kitlib.display.tables import parse_time
from kitlib.errors import KitError, Rejected, WaitTimeout
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.job_status import RunStatus
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot
from kitlib.metrics.history import History
from kitlib.metrics.timeline import Timeline
from kitlib.runs.log_cache import LogCache

NODES_NAMESPACE = "default"  # where Events about nodes are, since nodes are in none


class RunHistory(ABC):
    """The part of a run that tells what became of it."""

    kube: Kube
    name: str
    log_cache: LogCache

    @property
    @abstractmethod
    def status(self) -> RunStatus:
        """How it is now."""

    @property
    @abstractmethod
    def _about(self) -> str:
        """What it is called in errors."""

    @abstractmethod
    def _pods(self) -> list[Object]:
        """Return its pods."""

    @abstractmethod
    def _judgements(self) -> Iterator[tuple[Snapshot, RunStatus]]:
        """Yield what there is, and what it comes to."""

    @abstractmethod
    def _check(self, status: RunStatus) -> None:
        """Raise the error of a run that has failed or was deleted."""

    def timeline(self) -> "RunTimeline":
        """Return what became of it, change by change: who came and went when, and what that cost.

        Logs of pods that are gone are in it as far as this object has read them: each call does.

        Returns:
            What shows itself as a table, and has ``.rows``, ``.frame()``, ``.world_sizes``, ``.steps_lost``,
            ``.steps_repeated``, ``.samples``, and its picture, ``.plot()``.

        Example:
            >>> run.timeline().world_sizes
            (2, 1, 2)
        """
        return RunTimeline.of(self._timeline(self._pods(), over=self.status.finished))

    def dashboard(self):
        """Return its timeline as it goes, with buttons: kill, stop, scale, and switch the nodes.

        A button does the call that is shown beside it. It follows the run until that ends or the view is
        closed. Where nobody looks, as under papermill, the output is a picture and a table.

        Example:
            >>> run.dashboard()
            Run lab: Running: 2 of 2 pods; world size 2 in round 1, step 40, 1 changes
        """
        from kitlib.clusters import connect  # clusters know runs, and here a run asks for its cluster
        from kitlib.widgets.dashboard import Dashboard  # numpy and matplotlib take half a second

        try:
            cluster = connect(self.kube.cluster)
        except KitError:  # one that is known by its kubeconfig alone
            cluster = None
        ours = cluster if getattr(cluster, "provider", "") == "local" else None

        def replicas() -> tuple[int, int, int]:
            return job_kinds.limits(self._main())

        return Dashboard(self, states=self._judgements, replicas=replicas, cluster=ours).start()

    def namespace_events(self) -> list[Object]:
        """Return the Events of its namespace, and those about nodes as far as this user may see them."""
        events = self.kube.get_all("Event")
        if self.kube.namespace == NODES_NAMESPACE:
            return events
        try:
            nodes = self.kube.within(NODES_NAMESPACE)
            return events + nodes.get_all("Event", fields="involvedObject.kind=Node")
        except Rejected as error:
            if error.status != 403:
                raise
            return events

    def _timeline(self, there: Collection[Object], *, over: bool) -> Timeline:
        self.log_cache.refresh(there)
        history = History(self.name)
        for pod, lines in self.log_cache.kept.values():
            node = pod["spec"].get("nodeName", "")
            history.add_lines(pod["metadata"]["name"], node, (line.text for line in lines))
        ends = (parse_time(pods.finished_at(pod)).timestamp() for pod in there if pods.finished_at(pod))
        ended = max(ends, default=0.0) if over else 0.0
        store = [f"{self.name}-store"]
        return history.timeline(self.namespace_events(), now=ended or time.time(), store=store)

    def _wait_until(self, until: Callable[[Timeline], bool], timeout: float, line: Progress) -> Timeline:
        def looks() -> Iterator[Timeline]:
            for seen, status in self._judgements():
                yield self._timeline(seen["Pod"].values(), over=status.finished)
                self._check(status)
                if status.finished:
                    raise WaitTimeout(
                        "the run has ended without what was waited for",
                        about=self._about,
                        fix="run.timeline() shows what there was; launch it again, with more epochs",
                    )

        found = wait(
            looks(),
            until=until,
            timeout=timeout,
            what="what was waited for",
            about=self._about,
            resume="run.timeline() shows what there was; wait again, or longer",
            describe=lambda seen: seen.words,
            report=line.update,
        )
        line.done(found.words)
        return found


class RunTimeline(Timeline):
    """A run's timeline with its plot; created by :meth:`kitlib.Run.timeline`."""

    @classmethod
    def of(cls, timeline: Timeline) -> "RunTimeline":
        """Add the plot to a timeline."""
        return cls(**{each.name: getattr(timeline, each.name) for each in fields(timeline)})

    def plot(self):
        """Plot world size, what each worker did, loss, and the cost of each change.

        Example:
            >>> run.timeline().plot().save("timeline.png")
        """
        from kitlib.widgets.timeline_plot import plot_timeline  # matplotlib takes half a second

        return plot_timeline(self)
