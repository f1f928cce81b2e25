"""Control of a running run: signals to the process of a rank, and the number of workers.

Each action is recorded as an Event, so that any kernel can show later who did what, and when.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from itertools import count, islice

from kitlib.display.progress import progress
from kitlib.display.tables import Text
from kitlib.errors import BadInput, CommandFailed
from kitlib.k8s import job_kinds, logs, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.events import make_event, write_event
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import check_count
from kitlib.metrics import events
from kitlib.metrics.rank_processes import RankProcess, rank_processes, replica_processes
from kitlib.runs.logs import LogCache
from kitlib.runs.status import RunObjects

KILLED, PAUSED, RESUMED, SCALED = "Killed", "Paused", "Resumed", "Scaled"
RANK, PID = "trainyard/rank", "trainyard/pid"
MAX_WORKERS = 1000
LEAVE_SECONDS = 60  # more than a worker's grace period


class RunControl:
    """Signals and scaling of one run."""

    def __init__(self, objects: RunObjects, cache: LogCache) -> None:
        self.objects: RunObjects = objects
        self.cache: LogCache = cache
        self.kube: Kube = objects.kube

    def signal(self, rank: int | str, signal: str, reason: str) -> Text:
        """Signal a rank of the newest rendezvous, or a replica of parameter servers; issue an Event."""
        return self._signal(self._find(rank), signal, reason)

    def resume(self, rank: int | str | None) -> Text:
        """Send SIGCONT to the paused process of a rank, or to all paused processes."""
        paused = [process for process in self._paused() if rank in (None, process.rank)]
        if not paused:
            what = "no process is paused" if rank is None else f"rank {rank} is not paused"
            fix = "call `run.pause(rank=…)` first; `run.events()` shows which were paused"
            raise BadInput(what, about=self.objects.about, fix=fix)
        return Text("\n".join(self._signal(process, "CONT", RESUMED) for process in paused))

    def _find(self, rank: int | str) -> RankProcess:
        live_pods = [pod for pod in self.objects.pods() if not pods.finished(pod)]
        named = any(isinstance(pods.replica_id(pod), str) for pod in live_pods)  # parameter servers
        if not named:
            check_count(rank, what="rank", least=0, most=10**6)
        reported = [
            (pod, event)
            for pod in live_pods
            for event in events.parse(line.text for line in logs.read_if_reachable(self.kube, pod))
        ]
        processes = replica_processes(reported) if named else rank_processes(reported)
        if rank not in processes:
            known = ", ".join(map(str, processes))
            what = "no trainer has reported its rank yet"
            if known:
                what = f"no process trains as {pods.display_name(rank)}"
            lost = [
                f"; {pod['metadata']['name']}: {reason}"
                for pod in live_pods
                if (reason := pods.node_unreachable(pod))
            ]
            fix = f"one of {known}" if known else "wait for the first rendezvous; `run.logs()` shows it"
            raise BadInput(what + "".join(lost), about=self.objects.about, fix=fix)
        if processes[rank].pid is None:
            what = f"the trainer of rank {rank} does not report its process ID"
            fix = 'log pid=os.getpid() in its "rendezvous" or "start" event'
            raise BadInput(what, about=self.objects.about, fix=fix)
        return processes[rank]

    def _paused(self) -> list[RankProcess]:
        """Find the processes that any kernel has paused, from the Events, in pods that still exist."""
        live_pods = {pod["metadata"]["uid"]: pod for pod in self.objects.pods() if not pods.finished(pod)}
        processes: dict[tuple[str, str], RankProcess | None] = {}
        for entry in sorted(self.objects.events(), key=lambda event: event.get("eventTime") or ""):
            notes = entry["metadata"].get("annotations") or {}
            uid = entry["involvedObject"].get("uid", "")
            if PID in notes and uid in live_pods:
                rank = int(notes[RANK]) if notes[RANK].isdigit() else notes[RANK]
                process = RankProcess(rank, live_pods[uid], int(notes[PID]))
                processes[uid, notes[PID]] = process if entry["reason"] == PAUSED else None
        return [process for process in processes.values() if process]

    def _signal(self, process: RankProcess, signal: str, reason: str) -> Text:
        """Run kill inside the pod: the process ID is of its PID namespace."""
        pod, meta = process.pod, process.pod["metadata"]
        name = pods.display_name(process.rank)
        now = datetime.now(UTC)
        command = ["sh", "-c", f"kill -{signal} {process.pid}"]
        try:
            self.kube.execute(meta["name"], command, container=pod["spec"]["containers"][0]["name"])
        except CommandFailed as error:
            raise CommandFailed(
                f"the process could not be {reason.lower()}: {error.what}",
                about=f"process {process.pid} of {name} in pod {meta['name']}, {self.objects.about}",
                fix="it may have ended: `run.logs()` shows it; a new one reports its next rendezvous",
            ) from error
        notes = {RANK: str(process.rank), PID: str(process.pid)}
        self._record(pod, "Pod", reason, f"{name}, process {process.pid}", at=now, annotations=notes)
        return Text(f"{meta['name']} ({name}) on {pod['spec'].get('nodeName')}: {reason.lower()}")

    def scale(self, workers: int) -> Text:
        """Change the number of workers, keeping the logs of those that leave."""
        main, about = self.objects.main(), self.objects.about
        before, fewest, most = job_kinds.limits(main)
        if job_kinds.servers(main):
            before, fewest, most = job_kinds.replica_limits(main)[0], 1, MAX_WORKERS
        elif fewest == most or main["kind"] == "Job":
            fix = "launch it with limits: `kit.TorchElastic(…, min_nodes=1, max_nodes=8)`"
            raise BadInput(f"this run has {before} workers, a fixed number", about=about, fix=fix)
        check_count(workers, what="workers", least=fewest, most=most)
        run_pods = self.objects.pods()
        if job_kinds.succeeded(main, run_pods) or job_kinds.failure(main, run_pods) is not None:
            raise BadInput("the run has ended", about=about, fix="launch it again")
        now = datetime.now(UTC)
        name = self.objects.name
        with progress(f"run {name}") as line:
            changed = self._scale(main, workers, run_pods, report=line.update)
            message = f"from {before} to {workers} workers"
            line.done(message)
        self._record(main, main["kind"], SCALED, message, at=now)
        return Text(f"run {name}: {message}" + (f"; {changed}" if changed else ""))

    def _scale(
        self, main: Object, replicas: int, run_pods: Collection[Object], *, report: Callable[[str], None]
    ) -> str:
        notes = {"metadata": {"annotations": {job_kinds.REPLICAS: str(replicas)}}}
        patched = main["kind"], main["metadata"]["name"]
        if job_kinds.servers(main):  # the master watches its Job, and does the rest
            self.kube.patch(*patched, notes)
            return "the master creates and deletes them"
        if main["kind"] == job_kinds.POD_TEMPLATE:
            leaving, new = plan_workers(main, replicas, run_pods)
        else:
            new = []
            leaving = [
                pod for pod in run_pods if (pods.node_rank(pod) or 0) >= replicas and not pods.finished(pod)
            ]

        def apply() -> None:
            if main["kind"] == job_kinds.POD_TEMPLATE:
                self.kube.patch(*patched, notes)
                for pod in new:
                    self.kube.create(pod)
                for pod in leaving:
                    self.kube.delete("Pod", pod["metadata"]["name"])
            else:
                count = replicas - job_kinds.fixed_replicas(main)
                self.kube.patch(*patched, {"spec": {"replicas": count}}, part="scale")

        self.cache.drain(leaving, apply, seconds=LEAVE_SECONDS, report=report)
        joined, departed = (", ".join(pod["metadata"]["name"] for pod in group) for group in (new, leaving))
        return "; ".join(filter(None, [joined and f"new: {joined}", departed and f"left: {departed}"]))

    def _record(
        self,
        about: Object,
        kind: str,
        reason: str,
        message: str,
        *,
        at: datetime,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        labels = {names.RUN: self.objects.name}
        event = make_event(about, kind, reason, message, at=at, labels=labels, annotations=annotations or {})
        write_event(self.kube, event)


def plan_workers(
    template: Object, replicas: int, run_pods: Collection[Object]
) -> tuple[list[Object], list[Object]]:
    """Choose the plain pods to delete, and build those to create.

    A worker on an unreachable node is replaced, and ends when the node is back. A pod that has ended keeps
    its name, so that its log can be read.
    """
    live = sorted(filter(job_kinds.active, run_pods), key=lambda pod: pods.node_rank(pod) or 0)
    lost = [pod for pod in run_pods if pods.node_unreachable(pod) and not pods.deleted(pod)]
    numbers = {pod["metadata"]["labels"][names.WORKER] for pod in run_pods}
    free = (number for number in count() if str(number) not in numbers)
    new = [job_kinds.worker_pod(template, number) for number in islice(free, max(0, replicas - len(live)))]
    return [*live[replicas:], *lost], new
