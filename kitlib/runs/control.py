"""What one does to a run that trains: other workers, a process that dies, one that hangs, one that goes on.

Each is written down as an Event in the cluster, so that any kernel can tell later who did what, and when.
What the training makes of it is the trainers' business.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

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
from kitlib.runs.log_cache import LogCache
from kitlib.runs.scaling import scale, workers_of_a_master

KILLED, PAUSED, RESUMED, SCALED = "Killed", "Paused", "Resumed", "Scaled"
RANK, PID = "trainyard/rank", "trainyard/pid"


class RunControl(ABC):
    """The part of a run that acts on what trains."""

    kube: Kube
    name: str
    log_cache: LogCache

    @abstractmethod
    def _pods(self) -> list[Object]:
        """Return its pods."""

    @abstractmethod
    def _main(self) -> Object:
        """Return its main object; raise RunNotFound if there is none."""

    @property
    @abstractmethod
    def _about(self) -> str:
        """What it is called in errors."""

    # Processes

    def kill(self, *, rank: int | str) -> Text:
        """Kill the process of a rank (SIGKILL), as a crash would; its pod stays.

        Args:
            rank: Its rank in the newest rendezvous; of parameter servers ``"worker-3"``, ``"ps-0"`` or
                ``"master"``. There a worker's or server's pod ends with it, and the master makes another.

        Returns:
            What was done, in words.

        Raises:
            BadInput: No process is known to train as that rank.
            CommandFailed: The process is gone already.

        Example:
            >>> run.kill(rank=2)
            digits-2 (rank 2) on node-3: killed
        """
        return self._signal(self._find(rank), "KILL", KILLED)

    def pause(self, *, rank: int | str) -> Text:
        """Make the process of a rank hang (SIGSTOP): it holds its connections, and does nothing."""
        return self._signal(self._find(rank), "STOP", PAUSED)

    def resume(self, *, rank: int | str | None = None) -> Text:
        """Let a process that was stopped go on (SIGCONT).

        Args:
            rank: The rank that it had when it was stopped; by default all that were.

        Raises:
            BadInput: None was stopped.
        """
        stopped = [each for each in self._paused() if rank in (None, each.rank)]
        if not stopped:
            raise BadInput(
                "no process is paused" if rank is None else f"rank {rank} is not paused",
                about=self._about,
                fix="run.pause(rank=…) comes first; run.events() shows which were paused",
            )
        return Text("\n".join(self._signal(each, "CONT", RESUMED) for each in stopped))

    def _find(self, rank: int | str) -> RankProcess:
        there = [each for each in self._pods() if not pods.finished(each)]
        named = any(isinstance(pods.replica_id(each), str) for each in there)  # parameter servers
        if not named:
            check_count(rank, what="rank", least=0, most=10**6)
        said = [
            (pod, event)
            for pod in there
            for event in events.parse(line.text for line in logs.read_if_reachable(self.kube, pod))
        ]
        found = replica_processes(said) if named else rank_processes(said)
        if rank not in found:
            known = ", ".join(map(str, found))
            lost = [
                f"; {each['metadata']['name']}: {pods.node_unreachable(each)}"
                for each in there
                if pods.node_unreachable(each)
            ]
            nobody = (
                f"nobody trains as {pods.display_name(rank)}"
                if known
                else "no trainer has said yet who it is"
            )
            raise BadInput(
                nobody + "".join(lost),
                about=self._about,
                fix=f"one of {known}" if known else "wait for the first rendezvous; run.logs() shows it",
            )
        if found[rank].pid is None:
            raise BadInput(
                f"the trainer of rank {rank} does not say which process it is",
                about=self._about,
                fix='let its "rendezvous" or "start" event have pid=os.getpid()',
            )
        return found[rank]

    def _paused(self) -> list[RankProcess]:
        """Return whom this or another kernel has stopped, as far as they are there still."""
        there = {each["metadata"]["uid"]: each for each in self._pods() if not pods.finished(each)}
        found: dict[tuple[str, str], RankProcess | None] = {}
        for each in sorted(self._deeds(), key=lambda event: event.get("eventTime") or ""):
            notes = each["metadata"].get("annotations") or {}
            uid = each["involvedObject"].get("uid", "")
            if PID in notes and uid in there:
                rank = int(notes[RANK]) if notes[RANK].isdigit() else notes[RANK]
                who = RankProcess(rank, there[uid], int(notes[PID]))
                found[uid, notes[PID]] = who if each["reason"] == PAUSED else None
        return [each for each in found.values() if each]

    def _signal(self, who: RankProcess, signal: str, reason: str) -> Text:
        """Send a signal to a process: from inside its pod, whose processes nobody else can name."""
        meta = who.pod["metadata"]
        called = pods.display_name(who.rank)
        done = f"{meta['name']} ({called}) on {who.pod['spec'].get('nodeName')}: {reason.lower()}"
        now = datetime.now(UTC)
        command = ["sh", "-c", f"kill -{signal} {who.pid}"]
        try:
            self.kube.execute(meta["name"], command, container=who.pod["spec"]["containers"][0]["name"])
        except CommandFailed as error:
            raise CommandFailed(
                f"the process could not be {reason.lower()}: {error.what}",
                about=f"process {who.pid} of {called} in pod {meta['name']}, {self._about}",
                fix="it may have ended: run.logs() shows it; a new one says so by its next rendezvous",
            ) from error
        notes = {RANK: str(who.rank), PID: str(who.pid)}
        self._write(who.pod, "Pod", reason, f"{called}, process {who.pid}", at=now, notes=notes)
        return Text(done)

    # Workers

    def scale(self, workers: int) -> Text:
        """Have another number of workers: new ones join, those that are too many leave after their step.

        Workers that were lost are replaced: scale to the number that there should be.

        Args:
            workers: How many, within the limits of the job.

        Returns:
            What was done, in words.

        Raises:
            BadInput: The run's number of workers is fixed, or has other limits; or the run has ended.
            RunNotFound: It was deleted.

        Example:
            >>> run.scale(4)
            run digits: from 3 to 4 workers; new: digits-3
        """
        main = self._main()
        before, fewest, most = job_kinds.limits(main)
        if job_kinds.has_master(main):
            before, fewest, most = workers_of_a_master(main)
        elif fewest == most or main["kind"] == "Job":
            raise BadInput(
                f"this run has {before} workers, and no other number",
                about=self._about,
                fix="launch it with limits: kit.TorchElastic(…, min_nodes=1, max_nodes=8)",
            )
        check_count(workers, what="workers", least=fewest, most=most)
        seen = self._pods()
        if job_kinds.succeeded(main, seen) or job_kinds.failure(main, seen) is not None:
            raise BadInput("the run has ended", about=self._about, fix="launch it again")
        now = datetime.now(UTC)
        with progress(f"run {self.name}") as line:
            changed = scale(self.kube, main, workers, seen, log_cache=self.log_cache, report=line.update)
            words = f"from {before} to {workers} workers"
            line.done(words)
        self._write(main, main["kind"], SCALED, words, at=now)
        return Text(f"run {self.name}: {words}" + (f"; {changed}" if changed else ""))

    # Events

    def _deeds(self) -> list[Object]:
        """Return what was done to it, as far as the cluster remembers: an hour."""
        return self.kube.get_all("Event", labels=f"{names.RUN}={self.name}")

    def _write(
        self,
        about: Object,
        kind: str,
        reason: str,
        message: str,
        *,
        at: datetime,
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write down what was done, as far as this user may."""
        event = make_event(about, kind, reason, message, at=at, labels={names.RUN: self.name}, notes=notes)
        write_event(self.kube, event)
