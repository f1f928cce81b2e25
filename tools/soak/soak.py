"""The soak test: attendees work during faults, and invariants must hold at the end."""

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import kitlib as kit
from kitlib.errors import KitError
from soak import attacker, memory
from soak.attacker import Attacker
from soak.attendee import Attendee, Broken, wait_until_done
from soak.faults import Faults
from soak.ledger import Ledger
from soak.memory import Sampler
from soak.plan import UNDO, Disturbance
from soak.resources import ResourceCounts, command_line, processes, size_of
from trainyard_kit import workshop

AT_ONCE = 32
# Warm-up of kubelet and supervisor in seconds; a shorter soak test does not check their memory.
MEMORY_AFTER, MIN_SHARE = 600.0, 1 / 4
STEADY = 5.0
STANDSTILL = 300.0  # the longest back-off of a Job


def _call(call: Callable[[], object]) -> list[str]:
    """Call a function that raises an exception on a problem, and return no problems."""
    call()
    return []


def _not_forwarded(attendee: Attendee) -> list[str]:
    status = attendee.forward(seconds=0)
    return [] if "200" in status else [status]


class Soak:
    """Attendees, disturbances and a verdict.

    Args:
        cluster: A local cluster of this test.
        root: Its directory.
        disk: The file system that may be filled.
        report: Called with each event, as a dict.
    """

    def __init__(
        self,
        cluster: kit.Cluster,
        root: Path,
        *,
        disk: Path | None,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.cluster, self.root, self.report = cluster, root, report
        self.ledger = Ledger()
        self.faults = Faults(cluster, root, disk=disk)
        self.attendees: list[Attendee] = []
        self.problems: list[str] = []
        self._done: dict[str, int] = {}
        self._failed: dict[str, int] = {}

    def start(self, attendees: int, *, attacks: int) -> None:
        """Create the attendees, let some perform each action once, run attacks, and take a snapshot."""
        kubectl = self.cluster.kubectl_command()
        for number in range(1, attendees + 1):
            created = workshop.add(f"{number:02}", cluster=self.cluster, cpu="4", memory="8Gi")
            attendee = Attendee(created.name, created.kubeconfig, kubectl=kubectl, ledger=self.ledger)
            attendee.set_up()
            self.attendees.append(attendee)
        self._settle("the start")
        self.attacker = Attacker(self.cluster, self.attendees[0].kube)
        for attendee in self.attendees[:3]:
            for what in ("create", "job", "exec", "logs", "port-forward"):
                attendee.act(what, 0, 0.0)
        self._settle("the first jobs")
        self.faults.apply("components", "kube-apiserver", 0.0)
        self._settle("the end of an API server")  # nodes cannot be isolated before it answers
        for what in ("isolate", f"{UNDO}isolate"):  # creates the file with the states of nodes
            self.faults.apply("nodes", what, 0.0)
        self._settle("the first fault")
        self._record(self.attacker.run_attacks(self.attendees[1].kube, count=attacks, report=self.report))
        self._clear()
        self.counts = ResourceCounts.of(self.root)
        wait_until_done(self._changes, seconds=STANDSTILL / 2, report=self.report)
        self.report({"what": "start", "counts": vars(self.counts)})

    def disturb(self, disturbances: Iterable[Disturbance], *, seconds: float) -> None:
        """Run the plan's lanes in parallel."""
        self.sampler = Sampler(self.root)
        self.attacker.set_up()
        start = time.monotonic()
        lanes: dict[str, ThreadPoolExecutor] = {}
        try:
            for number, disturbance in enumerate(disturbances, 1):
                time.sleep(max(0.0, start + disturbance.at - time.monotonic()))
                if disturbance.lane not in lanes:
                    workers = AT_ONCE if disturbance.lane == "attendees" else 1
                    lanes[disturbance.lane] = ThreadPoolExecutor(workers, thread_name_prefix=disturbance.lane)
                lanes[disturbance.lane].submit(self._do, number, disturbance, start)
            time.sleep(max(0.0, start + seconds - time.monotonic()))
        finally:
            for lane in lanes.values():
                lane.shutdown()
            self.sampler.close()

    def _do(self, number: int, disturbance: Disturbance, start: float) -> None:
        delay = time.monotonic() - start - disturbance.at
        try:
            if disturbance.lane == "attendees":
                pick = disturbance.pick * len(self.attendees)
                attendee = self.attendees[int(pick)]
                outcome = f"{attendee.name}: {attendee.act(disturbance.what, number, pick % 1)}"
            elif disturbance.lane == "attacker":
                outcome = self.attacker.end() if disturbance.what.startswith(UNDO) else self.attacker.begin()
            else:
                outcome = self.faults.apply(disturbance.lane, disturbance.what, disturbance.pick)
            self._done[disturbance.what] = self._done.get(disturbance.what, 0) + 1
        except KitError as error:
            outcome = f"failed: {error.what}"
            self._failed[disturbance.what] = self._failed.get(disturbance.what, 0) + 1
        except Broken as error:
            outcome = str(error)
            self._record([outcome])
        except Exception as error:  # noqa: BLE001 - report defects of the soak test itself
            outcome = repr(error)
            self._record([f"{disturbance.what}: {outcome}"])
        seconds = time.monotonic() - start - disturbance.at - delay
        self.report(vars(disturbance) | {"late": round(delay, 1), "took": round(seconds, 1), "came": outcome})

    def finish(self) -> dict[str, Any]:
        """Undo everything, wait until the cluster is idle, and check the invariants."""
        self.faults.undo_all()
        self._settle("the end")
        self.training = attacker.compare(self.attacker.clean_up(), self.attacker.attacks)
        self._record(attacker.problems(self.training))
        objects: dict[tuple[str, str, str], str] = {}
        for attendee in self.attendees:
            objects |= attendee.objects()
        self._record(self.ledger.check(objects))
        for attendee in self.attendees:
            self._check(attendee.missing_files)
            self._check(partial(_call, partial(attendee.execute, "still")))
            self._check(partial(_call, partial(attendee.follow, seconds=2)))
            self._check(attendee.unexplained_gaps)
            self._check(partial(_not_forwarded, attendee))
        self._clear()
        leftovers = wait_until_done(self._differences, seconds=STANDSTILL / 2, report=self.report)
        self._record([f"left behind: {name}" for name in leftovers])
        return self._verdict()

    def _changes(self) -> list[str]:
        """Take the first snapshot again while it changes: what has ended is removed in the background."""
        if changes := self._differences():
            with contextlib.suppress(psutil.Error, OSError, ValueError):  # a process ended meanwhile
                self.counts = ResourceCounts.of(self.root)
        return changes

    def _differences(self) -> list[str]:
        """Compare with the first snapshot, after a wait in which no process may restart."""
        try:
            earlier = {process.pid for process in processes(self.root)}
            time.sleep(STEADY)
            current = {process.pid: " ".join(command_line(process)[:4]) for process in processes(self.root)}
            new = [f"restarted: {command}" for pid, command in current.items() if pid not in earlier]
            return new + ResourceCounts.of(self.root).differences(self.counts)
        except (psutil.Error, OSError, ValueError) as error:  # a process ended meanwhile
            return [f"cannot be counted: {type(error).__name__}"]

    def _record(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.problems.append(problem)
            self.report({"problem": problem})

    def _check(self, read: Callable[[], list[str]]) -> None:
        self._record(wait_until_done(read, seconds=30, report=self.report))

    def _settle(self, event: str) -> None:
        unfinished = wait_until_done(
            lambda: [run for attendee in self.attendees for run in attendee.unfinished()],
            seconds=STANDSTILL,
            report=self.report,
        )
        self._record([f"after {event}: {name}" for name in unfinished])

    def _clear(self) -> None:
        for attendee in self.attendees:
            with contextlib.suppress(KitError):
                attendee.clear()
        remaining = wait_until_done(
            lambda: [f"{attendee.name}: {pod}" for attendee in self.attendees for pod in attendee.pods()[1:]],
            seconds=120,
            report=self.report,
        )
        self._record([f"not deleted: {name}" for name in remaining])

    def _verdict(self) -> dict[str, Any]:
        samples = self.sampler.samples
        duration = samples["supervisor"][-1].at
        warm_up = min(MEMORY_AFTER, duration * MIN_SHARE)
        growths = {name: memory.growth(samples[name], after=warm_up) for name in memory.WATCHED}
        for name, figures in growths.items():
            if warm_up == MEMORY_AFTER:  # a shorter one has only warm-up
                self._record(memory.grown(name, figures))
        self._record(memory.unbounded(samples["etcd"]))
        return {
            "seconds": round(duration),
            "done": self._done,
            "failed": self._failed,
            "acknowledged": self.ledger.acknowledged,
            "unanswered": self.ledger.unanswered,
            "training": self.training,
            "memory": {"after": round(warm_up), **growths},
            "etcd": {
                "database": max(sample.size for sample in samples["etcd"]),
                "folder": size_of(self.root / "etcd"),
            },
            "counts": vars(ResourceCounts.of(self.root)),
            "problems": self.problems,
        }
