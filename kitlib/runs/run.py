"""A run: one launched job, followed by its label through the Kubernetes API, from any kernel.

It keeps no state beyond the cluster's, except the logs of deleted pods.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Literal, Protocol, overload

from kitlib import plugins
from kitlib.causes import Cause, Diagnosis, Facts, causes
from kitlib.causes.rules.programs import WARNINGS
from kitlib.display.progress import Progress, progress
from kitlib.display.signatures import checked_class
from kitlib.display.tables import Table, Text
from kitlib.display.tracebacks import Line
from kitlib.errors import KitError, RunFailed, RunNotFound, WaitTimeout, plain
from kitlib.k8s import logs, names, pods
from kitlib.k8s.client import Kube, allowed
from kitlib.k8s.events import events_table
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import GPU
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot
from kitlib.runs.control import KILLED, PAUSED, RunControl
from kitlib.runs.diagnosis import HANG_SECONDS, diagnose, run_failed
from kitlib.runs.follower import RunFollower
from kitlib.runs.logs import Log, LogCache, LogStream
from kitlib.runs.reports import Reports
from kitlib.runs.status import DELETED, FAILED, SUCCEEDED, RunObjects, RunStatus, find_main
from kitlib.runs.waiting import WaitReason

if TYPE_CHECKING:
    from kitlib.widgets.run_view import RunWatch

log: logging.Logger = logging.getLogger(__name__)
SETTLE_SECONDS = 5  # for the watch of the pods to bring the reason of a failure


class WorkersTimeline(Protocol):
    """The timeline that the entry point ``timeline`` builds from a run's logs and Events.

    A protocol, because kitlib does not import the package that has it.

    Attributes:
        summary: Its state now, in a few words.
        world_size: Of the newest rendezvous, 0 before the first.
        training: Whether a step has been done since.
    """

    @property
    def summary(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def training(self) -> bool: ...


@checked_class
class Run(Reports):
    """A launched job.

    Args:
        kube: The cluster's API.
        name: The run's name, which is its label.
        kind: The kind of its main object, ``Job`` or ``PyTorchJob``; by default read from the cluster.
        cluster: The cluster, for the dashboard's buttons that stop and isolate nodes.

    Attributes:
        objects: Its objects in the cluster.
        log_cache: The logs of its pods, also of deleted ones.
        control: Signals and scaling.

    Example:
        >>> run = kit.connect("trainyard").run("digits")
        >>> run.status
        Running: 4 of 4 pods
    """

    def __init__(self, kube: Kube, name: str, *, kind: str = "", cluster: object | None = None) -> None:
        self.kube: Kube = kube
        self.name: str = name
        self.cluster: object | None = cluster
        self.objects: RunObjects = RunObjects(kube, name, kind)
        self.log_cache: LogCache = LogCache(self.objects)
        self.control: RunControl = RunControl(self.objects, self.log_cache)

    @property
    def about(self) -> str:
        """The run, for errors."""
        return self.objects.about

    @property
    def kind(self) -> str:
        """The kind of its main object: ``Job``, ``PyTorchJob`` …"""
        return self.objects.kind

    @property
    def status(self) -> RunStatus:
        """Its phase now, and the reason for it."""
        return self.objects.status()

    def pods(self) -> Table:
        """List its pods: rank, status, node, and why they do not run."""
        return self.objects.table()

    def why(self, *, hang_after: float = HANG_SECONDS) -> Diagnosis:
        """Find out why it has failed, waits or hangs: who, what, the evidence, and what to do.

        Args:
            hang_after: Seconds without a step of any rank, or without a line, after which a run hangs.
                Its ranks then report their current collectives, and their processes are inspected.

        Returns:
            A diagnosis, which displays itself; ``causes`` has the causes in order, and ``json()``
            all of it. Of a healthy run it says so.

        Example:
            >>> run.why()
            Failed: rank 1 was OOMKilled: it needs more than its memory limit
              evidence: pod digits-1, container pytorch: exit code 137, OOMKilled
              try:      memory=… more than 256Mi, or use less: smaller batches, fewer data loader workers
        """
        return diagnose(self.objects, self.status, self.log_cache.lines(), hang_after=hang_after)

    def events(self) -> Table:
        """List the Events about the run's objects and pods, oldest first."""
        about = {self.name, *(pod["metadata"]["name"] for pod in self.objects.pods())}
        return events_table(
            event
            for event in self.kube.get_all("Event")
            if event["involvedObject"].get("name") in about
            or (event["metadata"].get("labels") or {}).get(names.RUN) == self.name
        )

    @overload
    def logs(
        self, *, rank: int | str | None = ..., follow: Literal[False] = ..., timeout: float = ...
    ) -> Log: ...

    @overload
    def logs(
        self, *, rank: int | str | None = ..., follow: Literal[True], timeout: float = ...
    ) -> LogStream: ...

    def logs(
        self, *, rank: int | str | None = None, follow: bool = False, timeout: float = 3600
    ) -> Log | LogStream:
        """Read the pods' output: text that shows itself, or with ``follow`` lines as they come.

        A notebook shows the last thousand lines, a trainer's JSON as people read it. The text itself is
        whole, as it was written: ``print(run.logs())``.

        Args:
            rank: Rank of the pod, or ``"master"``, ``"ps-0"``, ``"worker-3"``; by default all, in order of
                time, each line with its rank.
            follow: Wait for the pods, showing why they do not run yet, and continue until they end.
            timeout: Seconds to wait for the pods to start.

        Raises:
            BadInput: There is no such rank.

        Example:
            >>> for line in run.logs(rank=0, follow=True):
            ...     print(line)
        """
        if follow:
            return LogStream(self.objects, self.log_cache, rank=rank, timeout=timeout)
        written = self.log_cache.lines(rank)
        note = "" if any(written.values()) else f"(no output yet. {self.status})"
        return Log(logs.merge(written), only=rank, note=note)

    def _logs(self) -> dict[int | str, list[Line]]:
        return self.log_cache.lines()

    def timeline(self) -> WorkersTimeline:
        """Build its timeline: each change of its workers, and the steps and the time that it cost.

        It includes logs of deleted pods as far as this object has read them, as each call does.

        Returns:
            What shows itself as a table, and has ``.rows``, ``.frame()``, ``.world_sizes``, ``.steps_lost``,
            ``.steps_repeated``, ``.samples``, and its picture, ``.plot()``.

        Example:
            >>> run.timeline().world_sizes
            (2, 1, 2)
        """
        return self._timeline(self.objects.pods(), finished=self.status.finished)

    def _timeline(self, listed: Collection[Object], *, finished: bool) -> WorkersTimeline:
        timeline: WorkersTimeline = plugins.find("kitlib.runs", "timeline")(
            self.log_cache, listed, finished=finished
        )
        return timeline

    def watch(self) -> "RunWatch":
        """Show a live picture: loss by rank, images a second, world size, pods, events, merged log.

        It follows the run in the background until it ends, so the next cells run meanwhile. Without a front
        end, as under papermill, the output is a picture and a table, complete when a later cell, such as
        ``run.wait()``, has ended.

        Returns:
            A watch, which shows itself; ``stop()`` ends it, ``save("run.png")`` writes its picture.

        Example:
            >>> run = kit.launch(job, cluster=cluster)
            >>> run.watch()
            Run digits: Running: 4 of 4 pods; step 120, loss 0.21, images/s 3,450, world size 4
        """
        from kitlib.widgets.run_view import RunWatch  # numpy and matplotlib take half a second

        return RunWatch(self, states=self._explained).start()

    def dashboard(self) -> object:
        """Show its live timeline, with buttons: kill, pause, scale, and stop or isolate local nodes.

        A button does the call that is shown beside it. It follows the run until that ends or the view is
        closed. Without a front end, as under papermill, the output is a picture and a table.

        Example:
            >>> run.dashboard()
            Run lab: Running: 2 of 2 pods; world size 2 in round 1, step 40, 1 changes
        """
        return plugins.find("kitlib.runs", "dashboard")(self)

    def wait(
        self,
        *,
        until: Callable[[WorkersTimeline], bool] | None = None,
        timeout: float = 3600,
        hang_after: float = HANG_SECONDS,
    ) -> RunStatus | WorkersTimeline:
        """Wait until it has succeeded, or until a condition holds, showing its status.

        Args:
            until: Called with the run's timeline, as :meth:`timeline` returns it, after each change and at
                least once a second; by default the run is waited for to its end.
            timeout: Seconds.
            hang_after: As for `why`: a run that hangs is waited for, and the line says why it does.

        Returns:
            The status; with ``until`` the timeline for which it held.

        Raises:
            RunFailed: It failed; the error has the traceback of the rank that failed first.
            RunNotFound: It was deleted.
            WaitTimeout: It took longer, or has ended before the condition held.

        Example:
            >>> run.wait(until=lambda timeline: timeline.world_size == 2 and timeline.training)
        """
        with progress(f"run {self.name}") as line:
            if until is not None:
                return self._wait_until(until, timeout, line)
            with RunFollower(self.kube) as follower:
                status = wait(
                    self._statuses(follower if line.in_place else None, hang_after),
                    until=lambda state: state.finished,
                    timeout=timeout,
                    what="the run to end",
                    about=self.about,
                    resume=f"`run.wait()` waits again, `run.delete()` ends it; from "
                    f'another kernel: `kit.connect("{self.kube.cluster}").run("{self.name}")`',
                    report=lambda text: line.update(follower.describe(text) if line.in_place else text),
                )
            line.done(status.phase, seconds=pods.seconds_run(self.objects.pods()))
        self._check(status)
        for cause, fails in self._warnings(status):
            if fails:
                raise RunFailed(cause.line, about=self.about, fix=cause.fix, rank=cause.rank)
            log.warning("%s: %s. %s", self.about, cause.line, plain(cause.fix))
        return status

    def _warnings(self, status: RunStatus) -> Iterator[tuple[Cause, bool]]:
        """Yield the problems of a run that has succeeded, such as unused GPUs, and whether each fails it."""
        live_pods = self.objects.newest(self.objects.pods())
        if len(live_pods) < 2 and not any(GPU in str(pod["spec"]) for pod in live_pods):
            return
        main, lines = find_main(self.kube, self.name), self.log_cache.lines()
        nodes = allowed(lambda: list(self.kube.get_all("Node"))) or []
        facts = Facts(self.name, main, live_pods, objects={"Node": nodes}, logs=lines, phase=status.phase)
        notes = ((main or {}).get("metadata") or {}).get("annotations") or {}
        for cause in causes(facts, among=WARNINGS):
            yield cause, cause.kind == "GpusUnused" and notes.get(names.IDLE_GPUS) == "fail"

    def _wait_until(
        self, until: Callable[[WorkersTimeline], bool], timeout: float, line: Progress
    ) -> WorkersTimeline:
        def timelines() -> Iterator[WorkersTimeline]:
            for timeline_now, status in self._watch():
                yield self._timeline(timeline_now["Pod"].values(), finished=status.finished)
                self._check(status)
                if status.finished:
                    what = "the run has ended before the condition held"
                    fix = "`run.timeline()` shows what there was; launch it again, with more epochs"
                    raise WaitTimeout(what, about=self.about, fix=fix)

        timeline = wait(
            timelines(),
            until=until,
            timeout=timeout,
            what="the condition to hold",
            about=self.about,
            resume="`run.timeline()` shows what there was; wait again, or longer",
            describe=lambda timeline_now: timeline_now.summary,
            report=line.update,
        )
        line.done(timeline.summary)
        return timeline

    def _statuses(self, follower: RunFollower | None, hang_after: float) -> Iterator[RunStatus]:
        reason = self._wait_reason(hang_after)
        for snapshot, status in self._watch():
            self.log_cache.refresh_ending(snapshot["Pod"].values())
            if follower and not status.finished:
                follower.follow(snapshot["Pod"].values())
            trains = follower and follower.progress.began
            yield status if trains else reason.explain(status)

    def _wait_reason(self, hang_after: float) -> WaitReason:
        """Build the `WaitReason` of the run, which does not inspect ranks that complete steps."""
        return WaitReason(
            lambda: diagnose(
                self.objects, self.status, self.log_cache.lines(), hang_after=hang_after, look=False
            )
        )

    def _explained(self) -> Iterator[tuple[Snapshot, RunStatus]]:
        """Follow its objects and their status, with the first cause if it has waited for long."""
        reason = self._wait_reason(HANG_SECONDS)
        for snapshot, status in self.objects.watch():
            if status.phase == SUCCEEDED:
                warnings = list(self._warnings(status))
                phase = FAILED if any(fails for _, fails in warnings) else SUCCEEDED
                status = replace(status, phase=phase, reason="; ".join(cause.line for cause, _ in warnings))
            yield snapshot, reason.explain(status)

    def _watch(self) -> Iterator[tuple[Snapshot, RunStatus]]:
        """Yield objects and status; a failure not before it can be explained.

        Each watch runs by itself: that of the pods may be behind the one that brings the failure.
        """
        before, settled_by = None, 0.0
        for snapshot, status in self.objects.watch():
            if status.phase == FAILED and before and not self._explainable(snapshot):
                settled_by = settled_by or time.monotonic() + SETTLE_SECONDS
                status = before if time.monotonic() < settled_by else status
            before = status
            yield snapshot, status

    def _explainable(self, snapshot: Snapshot) -> bool:
        """Check whether the watch has reported all pods, and one has failed, and none is still ending."""
        live_pods = self.objects.pods()
        existing = {pod["metadata"]["name"] for pod in live_pods}
        ends = self.objects.newest(live_pods)
        leaving = any(pods.deleted(pod) and not pods.finished(pod) for pod in live_pods)
        return existing >= snapshot["Pod"].keys() and bool(pods.failed(ends)) and not leaving

    def _check(self, status: RunStatus) -> None:
        if status.phase == FAILED:
            raise self.failure(status)
        if status.phase == DELETED:
            raise RunNotFound(status.reason, about=self.about, fix="launch it again")

    def failure(self, status: RunStatus, *, rank: int | str | None = None) -> RunFailed:
        """Build the error of a run that has failed, or of the failed pod of one rank."""
        diagnosis = diagnose(self.objects, status, self.log_cache.lines(rank), rank=rank)
        return run_failed(diagnosis, reason=status.reason)

    def kill(self, *, rank: int | str) -> Text:
        """Kill the process of a rank (SIGKILL), as a crash would; its pod stays.

        Args:
            rank: Its rank in the newest rendezvous; of parameter servers ``"worker-3"``, ``"ps-0"`` or
                ``"master"``. There a worker's or server's pod ends with it, and the master makes another.

        Raises:
            BadInput: No process is known to train as that rank.
            CommandFailed: The process has ended already.

        Example:
            >>> run.kill(rank=2)
            digits-2 (rank 2) on node-3: killed
        """
        return self.control.signal(rank, "KILL", KILLED)

    def pause(self, *, rank: int | str) -> Text:
        """Pause the process of a rank (SIGSTOP): it keeps its connections, and does nothing."""
        return self.control.signal(rank, "STOP", PAUSED)

    def resume(self, *, rank: int | str | None = None) -> Text:
        """Resume a paused process (SIGCONT).

        Args:
            rank: Its rank when it was paused; by default all paused processes.

        Raises:
            BadInput: None is paused.
        """
        return self.control.resume(rank)

    def scale(self, workers: int) -> Text:
        """Change the number of workers: new ones join, departing ones leave after their step.

        Lost workers are replaced: scale to the number that there should be.

        Args:
            workers: Within the limits of the job.

        Raises:
            BadInput: The run's number of workers is fixed, or has other limits; or the run has ended.
            RunNotFound: It was deleted.

        Example:
            >>> run.scale(4)
            run digits: from 3 to 4 workers; new: digits-3
        """
        return self.control.scale(workers)

    def delete(self) -> None:
        """Delete all objects with its label, and its pods, and wait until the pods are deleted."""
        self.objects.delete()

    def __repr__(self) -> str:
        return f'Run "{self.name}" in cluster "{self.kube.cluster}": {self._shown_status()}'

    def _repr_html_(self) -> str:
        return f"<b>Run</b> <code>{escape(self.name)}</code>: {escape(self._shown_status())}"

    def _shown_status(self) -> str:
        try:
            return str(self.status)
        except KitError as error:  # showing an object never fails
            return error.what
