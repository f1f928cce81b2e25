"""A run: one launched job, followed by its label through the Kubernetes API, from any kernel.

It keeps no state that the cluster does not have, but for the logs of pods that it saw go. How pods are judged
is in `status`, what their output means in `metrics` and `failures`, what is done to a run while it trains in
`interventions`, the picture in `widgets`.
"""

import time
from collections.abc import Callable, Collection, Iterator
from html import escape

from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput, KitError, Rejected, RunFailed, RunNotFound
from kitlib.k8s import job_kinds, logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.event_table import events_table
from kitlib.k8s.job_status import DELETED, FAILED, RunStatus, judge
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects
from kitlib.metrics import events as metrics
from kitlib.metrics.events import Event as Reported
from kitlib.metrics.timeline import Timeline
from kitlib.runs import failures
from kitlib.runs.control import RunControl
from kitlib.runs.log_cache import LogCache
from kitlib.runs.log_stream import Log, LogStream
from kitlib.runs.timeline import RunHistory

RIGHTS = ("RoleBinding", "Role", "ServiceAccount")
KINDS = (
    *job_kinds.KINDS,
    "Service",
    "ConfigMap",
    *RIGHTS,
)  # what a run may consist of; pods belong to the first
SETTLE_SECONDS = 5  # for the pods' watch to bring why a run has failed


class Run(RunHistory, RunControl):
    """A launched job.

    Args:
        kube: The cluster's API.
        name: The run's name, which is its label.
        kind: What runs its pods, ``Job`` or ``PyTorchJob``; by default the cluster is asked.

    Example:
        >>> run = kit.connect("trainyard").run("digits")
        >>> run.status
        Running: 4 of 4 pods
    """

    def __init__(self, kube: Kube, name: str, *, kind: str = "") -> None:
        self.kube = kube
        self.name = name
        self.log_cache = LogCache(kube)
        self._kind = kind

    # Looking

    @property
    def status(self) -> RunStatus:
        """How it is now: phase, and the reason for it."""
        warnings = self.kube.get_all("Event", fields=self._warnings)
        return judge(main(self.kube, self.name), self._pods(), warnings)

    def pods(self) -> Table:
        """Return its pods: rank, status, node, and why they do not run."""
        return pods.table(self._pods())

    def events(self) -> Table:
        """Return what Kubernetes has said about the run's objects and pods, oldest first."""
        ours = {self.name, *(each["metadata"]["name"] for each in self._pods())}
        return events_table(
            each
            for each in self.kube.get_all("Event")
            if each["involvedObject"].get("name") in ours
            or (each["metadata"].get("labels") or {}).get(names.RUN) == self.name
        )

    def logs(
        self, *, rank: int | str | None = None, follow: bool = False, timeout: float = 3600
    ) -> Log | LogStream:
        """Return what the pods have written: text that shows itself, or with ``follow`` lines as they come.

        A notebook shows a trainer's JSON as people read it; the text and the lines are as they were written.

        Args:
            rank: Number of the pod, or ``"master"``, ``"ps-0"``, ``"worker-3"``; by default all, in order of
                time, each line with its rank.
            follow: Wait for the pods, saying why they do not run yet, and go on until they end.
            timeout: Seconds to wait for the pods to start.

        Raises:
            BadInput: There is no such rank.

        Example:
            >>> for line in run.logs(rank=0, follow=True):
            ...     print(line)
        """
        if follow:
            return LogStream(self, rank, timeout)
        written = self._written(rank)
        note = "" if any(written.values()) else f"(no output yet. {self.status})"
        return Log(logs.merge(written), only=rank, note=note)

    def metrics(self, event: str | None = None):
        """Return what the trainer reported, a row a JSON line, as a pandas DataFrame.

        Args:
            event: Only lines of this kind: ``step``, ``epoch``, ``eval`` …

        Returns:
            Columns event, time, rank, world_size, and those of the trainer: ``loss``, ``accuracy`` …
        """
        import pandas  # half a second, and seldom needed

        columns = ["event", "time", "rank", "world_size"]
        frame = pandas.DataFrame(metrics.rows(self._reported(), event))
        return frame if len(frame) else pandas.DataFrame(columns=columns)

    def plot(self):
        """Return a picture of the loss by rank."""
        from kitlib.widgets.plots import plot_loss  # matplotlib takes half a second

        return plot_loss(self._reported(), title=self.name)

    def watch(self):
        """Return a live picture of it: loss by rank, images a second, world size, pods, events, merged log.

        It follows the run in the background until it ends, so the next cells run meanwhile. Where nobody
        looks, as under papermill, the output is a picture and a table, complete when a later cell, such as
        ``run.wait()``, has ended.

        Returns:
            A watch, which shows itself; ``stop()`` ends it, ``save("run.png")`` writes its picture.

        Example:
            >>> run = kit.launch(job, cluster=cluster)
            >>> run.watch()
            Run digits: Running: 4 of 4 pods; step 120, loss 0.21, images/s 3,450, world size 4
        """
        from kitlib.widgets.run_view import RunWatch  # numpy and matplotlib take half a second

        return RunWatch(self, states=self._judgements).start()

    # Acting

    def wait(
        self, *, until: Callable[[Timeline], bool] | None = None, timeout: float = 3600
    ) -> RunStatus | Timeline:
        """Wait until it has succeeded, or until something is so, showing what it does.

        Args:
            until: Asked each second with the run's timeline, as :meth:`timeline` returns it; by default the
                run is waited for to its end.
            timeout: Seconds.

        Returns:
            The status; with ``until`` the timeline for which it held.

        Raises:
            RunFailed: It failed; the error has the traceback of the rank that failed first.
            RunNotFound: It was deleted.
            WaitTimeout: It took longer, or has ended without that.

        Example:
            >>> run.wait(until=lambda timeline: timeline.world_size == 2 and timeline.training)
        """
        with progress(f"run {self.name}") as line:
            if until is not None:
                return self._wait_until(until, timeout, line)
            status = wait(
                self._states(),
                until=lambda state: state.finished,
                timeout=timeout,
                what="the run to end",
                about=self._about,
                resume=f"run.wait() goes on waiting, run.delete() ends it; from "
                f'another kernel: kit.connect("{self.kube.cluster}").run("{self.name}")',
                report=line.update,
            )
            line.done(status.phase)
        self._check(status)
        return status

    def delete(self) -> None:
        """Delete all that carries its label, with the pods, and wait until those are gone."""
        kind_of = job_kinds.KINDS[self.kind]  # asked before what tells it is deleted
        selector, ours = f"{kind_of.pods}={self.name}", f"{names.RUN}={self.name}"
        for kind in KINDS:
            for each in known(self.kube, kind, labels=ours):
                self.kube.delete(kind, each["metadata"]["name"])
        # Nobody else deletes plain pods; and Kubernetes learns only by and by what a newly defined kind owns.
        # Where something stands between the two, the end of the pods tells that it is gone as well.
        direct = {ours, selector} if kind_of.maker == ("", "") else {ours}
        for each in (pod for labels in direct for pod in self.kube.get_all("Pod", labels=labels)):
            self.kube.delete("Pod", each["metadata"]["name"])
        for each in self._deeds():
            self.kube.delete("Event", each["metadata"]["name"])
        if self.kube.get_all("Pod", labels=selector):
            self._wait_for_the_end_of(selector)
        # Last: an operator that has not heard of the end yet makes them anew for pods that it misses.
        for each in self.kube.get_all("Service", labels=f"{names.OPERATORS_JOB_NAME}={self.name}"):
            self.kube.delete("Service", each["metadata"]["name"])

    def _wait_for_the_end_of(self, selector: str) -> None:
        with progress(f"run {self.name}") as line:
            wait(
                watch_objects(self.kube, WatchSpec("Pod", labels=selector)),
                until=lambda state: not state["Pod"],
                what="the pods to end",
                about=self._about,
                resume="run.delete() again",
                describe=lambda state: _leaving(state["Pod"].values()),
                report=line.update,
            )
            line.done("deleted")

    # Showing

    def __repr__(self) -> str:
        return f'Run "{self.name}" in cluster "{self.kube.cluster}": {self._shown_status()}'

    def _repr_html_(self) -> str:
        return f"<b>Run</b> <code>{escape(self.name)}</code>: {escape(self._shown_status())}"

    def _shown_status(self) -> str:
        try:
            return str(self.status)
        except KitError as error:  # showing an object never fails
            return error.what

    # Inside

    @property
    def kind(self) -> str:
        """What runs its pods: ``Job``, ``PyTorchJob`` …"""
        if not self._kind:
            found = main(self.kube, self.name)
            if found is None:  # not there yet, or gone: asked again the next time
                return "Job"
            self._kind = found["kind"]
        return self._kind

    def _main(self) -> Object:
        found = main(self.kube, self.name)
        if found is None:
            raise RunNotFound("it was deleted, or never launched", about=self._about, fix="launch it again")
        return found

    @property
    def _main_name(self) -> str:
        """The name of what runs its pods, which is the run's own but for the master of parameter servers."""
        ours = f"{names.RUN}={self.name}"
        found = known(self.kube, self.kind, labels=ours) if self.kind == "Job" else []
        return found[0]["metadata"]["name"] if found else self.name

    @property
    def _about(self) -> str:
        return f'run "{self.name}" in cluster "{self.kube.cluster}"'

    @property
    def _warnings(self) -> str:
        kind, suffix = job_kinds.KINDS[self.kind].maker
        name = f"{self._main_name}{suffix}"
        return f"involvedObject.kind={kind or self.kind},involvedObject.name={name},type=Warning"

    @property
    def _selector(self) -> str:
        return job_kinds.selector(self.kind, self.name)

    def _pods(self) -> list[Object]:
        return self.kube.get_all("Pod", labels=self._selector)

    def _ranks(self, rank: int | str | None) -> dict[int | str, Object]:
        """Return the newest pod of each rank that is asked for."""
        by_age = sorted(self._pods(), key=lambda pod: pod["metadata"]["creationTimestamp"])
        found = {pods.replica_id(each): each for each in by_age}
        if rank is None:
            return dict(sorted(found.items()))
        if job_kinds.has_master(self._main()):
            if rank not in found and not pods.is_replica_id(rank):
                raise BadInput(
                    f"the pods of this run are {', '.join(map(str, found)) or 'not there yet'}",
                    about=f"rank={rank!r}",
                    fix='rank="master", rank="ps-0" or rank="worker-0"',
                )
            return {rank: found[rank]} if rank in found else {}
        gone = (pods.replica_id(pod) for pod, _ in self.log_cache.kept.values())
        ranks = {*range(job_kinds.wanted(self._main())), *found, *gone}
        if isinstance(rank, bool) or not isinstance(rank, int) or rank not in ranks:
            raise BadInput(
                f"the pods of this run have the ranks 0 to {max(ranks)}", about=f"rank={rank!r}", fix="rank=0"
            )
        return {rank: found[rank]} if rank in found else {}

    def _written(self, rank: int | str | None = None) -> dict[int | str, list[Line]]:
        """Return what pods have written, by their rank; of those that are gone, as far as it was kept."""
        chosen = self._ranks(rank)
        read = logs.read_if_reachable if rank is None else logs.read
        written = self.log_cache.written(self._pods(), chosen, read=read)
        return {number: lines for number, lines in written.items() if rank in (None, number)}

    def _reported(self) -> list[Reported]:
        return list(metrics.parse(line.text for lines in self._written().values() for line in lines))

    def _check(self, status: RunStatus) -> None:
        """Raise the error of a run that has failed or was deleted."""
        if status.phase == FAILED:
            raise self._failure(status)
        if status.phase == DELETED:
            raise RunNotFound(status.reason, about=self._about, fix="launch it again")

    def _watched(self) -> Iterator[Snapshot]:
        return watch_objects(
            self.kube,
            WatchSpec(self.kind, fields=f"metadata.name={self._main_name}"),
            WatchSpec("Pod", labels=self._selector, seen=self.log_cache.see),
            WatchSpec("Event", fields=self._warnings),
        )

    def _states(self) -> Iterator[RunStatus]:
        for seen, status in self._judgements():
            self.log_cache.watch(seen["Pod"].values())
            yield status

    def _judgements(self) -> Iterator[tuple[Snapshot, RunStatus]]:
        """Yield what there is, and what it comes to; that a run has failed, once it can be explained."""
        before, settled_by = None, 0.0
        for seen in self._watched():
            status = self._judged(seen)
            if status.phase == FAILED and before and not self._settled(seen):
                settled_by = settled_by or time.monotonic() + SETTLE_SECONDS
                status = before if time.monotonic() < settled_by else status
            before = status
            yield seen, status

    def _settled(self, seen: Snapshot) -> bool:
        """Return whether a run's failure can be explained: each watch goes on by itself, and the pods' may be
        behind the one that says that the run has failed.
        """
        there = self._pods()
        names = {each["metadata"]["name"] for each in there}
        return names >= seen["Pod"].keys() and bool(pods.failed(self.log_cache.newest(there)))

    def _judged(self, seen: Snapshot) -> RunStatus:
        found = next(iter(seen[self.kind].values()), None)
        main = found and {"kind": self.kind, **found}  # the members of a list do not say their kind
        return judge(main, seen["Pod"].values(), seen["Event"].values())

    def _failure(self, status: RunStatus) -> RunFailed:
        newest = self.log_cache.newest(self._pods())
        return failures.explain(status, newest, self._written(), about=self._about)


def main(kube: Kube, name: str) -> Object | None:
    """Return the object that runs the pods of a run, or None if there is none."""
    for kind in job_kinds.KINDS:
        found = known(kube, kind, fields=f"metadata.name={name}")
        if not found and kind == "Job":
            found = known(kube, kind, fields=f"metadata.name={job_kinds.master(name)}")
        if found:
            return {"kind": kind, **found[0]}  # the members of a list do not say their kind
    return None


def known(kube: Kube, kind: str, **selectors: str) -> list[Object]:
    """Return the objects of a kind; none where the cluster does not know it, or the user may not see it."""
    try:
        return kube.get_all(kind, **selectors)
    except Rejected as error:
        may_lack = kind in RIGHTS or (kind in job_kinds.KINDS and kind != "Job")
        if may_lack and error.status in (403, 404):
            return []
        raise


def _leaving(seen: Collection[Object]) -> str:
    held_up = {words for each in seen if (words := pods.node_unreachable(each))}
    return "; ".join([f"deleting it, {len(seen)} pods are still there", *sorted(held_up)])
