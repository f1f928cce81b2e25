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
from soak.resources import ResourceCounts, processes, size_of, words_of
from trainyard_kit import workshop

AT_ONCE = 32
# Of kubelet and supervisor, in which they have made what they make once; a short soak shows figures alone.
MEMORY_AFTER, MIN_SHARE = 600.0, 1 / 4
STEADY = 5.0
STANDSTILL = 300.0  # a Job waits so long at most before it starts another pod


def _call(act: Callable[[], object]) -> list[str]:
    """Run it; a problem raises an exception."""
    act()
    return []


def _not_forwarded(attendee: Attendee) -> list[str]:
    status = attendee.forward(seconds=0)
    return [] if "200" in status else [status]


class Soak:
    """Attendees, disturbances and a verdict.

    Args:
        cluster: A local one, of the soak's own.
        root: Its directory.
        disk: The file system that may be filled.
        say: Called with what happens, as a dict.
    """

    def __init__(
        self, cluster: kit.Cluster, root: Path, *, disk: Path | None, say: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cluster, self.root, self.say = cluster, root, say
        self.ledger = Ledger()
        self.faults = Faults(cluster, root, disk=disk)
        self.attendees: list[Attendee] = []
        self.problems: list[str] = []
        self._done: dict[str, int] = {}
        self._failed: dict[str, int] = {}

    def start(self, attendees: int, *, attacks: int) -> None:
        """Create the attendees, let each do everything once, try some attacks, and take a snapshot."""
        kubectl = self.cluster.kubectl_command()
        for number in range(1, attendees + 1):
            created = workshop.add(f"{number:02}", cluster=self.cluster, cpu="4", memory="8Gi")
            attendee = Attendee(created.name, created.kubeconfig, kubectl=kubectl, ledger=self.ledger)
            attendee.move_in()
            self.attendees.append(attendee)
        self._settle("the start")
        self.attacker = Attacker(self.cluster, self.attendees[0].kube)
        for attendee in self.attendees[:3]:
            for what in ("create", "job", "exec", "logs", "port-forward"):
                attendee.act(what, 0, 0.0)
        self._settle("the first jobs")
        self.faults.do("components", "kube-apiserver", 0.0)
        for what in ("isolate", f"{UNDO}isolate"):  # from then on, the states of nodes are in a file
            self.faults.do("nodes", what, 0.0)
        self._settle("the first fault")
        self._found(self.attacker.try_all(self.attendees[1].kube, most=attacks, say=self.say))
        self._clear()
        self.counts = ResourceCounts.of(self.root)
        self.say({"what": "start", "counts": vars(self.counts)})

    def disturb(self, disturbances: Iterable[Disturbance], *, seconds: float) -> None:
        """Run the plan's lanes in parallel."""
        self.sampler = Sampler(self.root)
        self.attacker.move_in()
        began = time.monotonic()
        lanes: dict[str, ThreadPoolExecutor] = {}
        try:
            for number, disturbance in enumerate(disturbances, 1):
                time.sleep(max(0.0, began + disturbance.at - time.monotonic()))
                if disturbance.lane not in lanes:
                    many = AT_ONCE if disturbance.lane == "attendees" else 1
                    lanes[disturbance.lane] = ThreadPoolExecutor(many, thread_name_prefix=disturbance.lane)
                lanes[disturbance.lane].submit(self._do, number, disturbance, began)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            for lane in lanes.values():
                lane.shutdown()
            self.sampler.close()

    def _do(self, number: int, disturbance: Disturbance, began: float) -> None:
        late = time.monotonic() - began - disturbance.at
        try:
            if disturbance.lane == "attendees":
                pick = disturbance.pick * len(self.attendees)
                attendee = self.attendees[int(pick)]
                came = f"{attendee.name}: {attendee.act(disturbance.what, number, pick % 1)}"
            elif disturbance.lane == "attacker":
                came = self.attacker.end() if disturbance.what.startswith(UNDO) else self.attacker.begin()
            else:
                came = self.faults.do(disturbance.lane, disturbance.what, disturbance.pick)
            self._done[disturbance.what] = self._done.get(disturbance.what, 0) + 1
        except KitError as error:
            came = f"could not be done: {error.what}"
            self._failed[disturbance.what] = self._failed.get(disturbance.what, 0) + 1
        except Broken as error:
            came = str(error)
            self._found([came])
        except Exception as error:  # noqa: BLE001 - a defect of the soak itself, which must not go unseen
            came = repr(error)
            self._found([f"{disturbance.what}: {came}"])
        took = time.monotonic() - began - disturbance.at - late
        self.say(vars(disturbance) | {"late": round(late, 1), "took": round(took, 1), "came": came})

    def finish(self) -> dict[str, Any]:
        """Undo everything, wait until the cluster is idle, and check the invariants."""
        self.faults.undo_all()
        self._settle("everything's end")
        self.training = attacker.compare(self.attacker.leave(), self.attacker.attacks)
        self._found(attacker.problems(self.training))
        objects: dict[tuple[str, str, str], str] = {}
        for attendee in self.attendees:
            objects |= attendee.objects()
        self._found(self.ledger.check(objects))
        for attendee in self.attendees:
            self._still(attendee.missing_files)
            self._still(partial(_call, partial(attendee.execute, "still")))
            self._still(partial(_call, partial(attendee.follow, seconds=2)))
            self._still(attendee.unexplained_gaps)
            self._still(partial(_not_forwarded, attendee))
        self._clear()
        left = wait_until_done(self._differences, seconds=STANDSTILL / 2, say=self.say)
        self._found([f"left behind: {name}" for name in left])
        return self._verdict()

    def _differences(self) -> list[str]:
        """Take another snapshot later, as restarted components have new processes."""
        try:
            before = {process.pid for process in processes(self.root)}
            time.sleep(STEADY)
            now = {process.pid: " ".join(words_of(process)[:4]) for process in processes(self.root)}
            new = [f"started again: {words}" for pid, words in now.items() if pid not in before]
            return new + ResourceCounts.of(self.root).differences(self.counts)
        except (psutil.Error, OSError, ValueError) as error:  # something ended while it was counted
            return [f"cannot be counted: {type(error).__name__}"]

    def _found(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.problems.append(problem)
            self.say({"problem": problem})

    def _still(self, look: Callable[[], list[str]]) -> None:
        self._found(wait_until_done(look, seconds=30, say=self.say))

    def _settle(self, what: str) -> None:
        left = wait_until_done(
            lambda: [run for attendee in self.attendees for run in attendee.unfinished()],
            seconds=STANDSTILL,
            say=self.say,
        )
        self._found([f"after {what}: {name}" for name in left])

    def _clear(self) -> None:
        for attendee in self.attendees:
            with contextlib.suppress(KitError):
                attendee.clear()
        left = wait_until_done(
            lambda: [f"{attendee.name}: {pod}" for attendee in self.attendees for pod in attendee.pods()[1:]],
            seconds=120,
            say=self.say,
        )
        self._found([f"not deleted: {name}" for name in left])

    def _verdict(self) -> dict[str, Any]:
        samples = self.sampler.samples
        lasted = samples["supervisor"][-1].at
        after = min(MEMORY_AFTER, lasted * MIN_SHARE)
        growths = {name: memory.growth(samples[name], after=after) for name in memory.WATCHED}
        for name, figures in growths.items():
            if after == MEMORY_AFTER:  # before, it is what is made once
                self._found(memory.grown(name, figures))
        self._found(memory.unbounded(samples["etcd"]))
        return {
            "seconds": round(lasted),
            "done": self._done,
            "failed": self._failed,
            "acknowledged": self.ledger.acknowledged,
            "unanswered": self.ledger.unanswered,
            "training": self.training,
            "memory": {"after": round(after), **growths},
            "etcd": {
                "database": max(sample.size for sample in samples["etcd"]),
                "folder": size_of(self.root / "etcd"),
            },
            "counts": vars(ResourceCounts.of(self.root)),
            "problems": self.problems,
        }
