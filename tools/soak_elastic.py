"""Disturb an elastic run at random, and check that no training step was lost or repeated.

``dev.py soak-elastic`` creates a local cluster, trains with ``trainers/digits_elastic.py``, and for ten
minutes kills and stops processes, isolates nodes, stops them, and scales; each is undone after a while. When
the run has finished, the samples of all steps must add up to those of all epochs, and each loss must equal
that of an undisturbed run to 1e-9.

The disturbances and their times depend only on the seed: ``tools/dev.py soak-elastic SEED=7``, or
``.venv/bin/python tools/soak_elastic.py --seed 7 --events 200 --seconds 600``. Each is printed as a
line of JSON with its result. The node of the rendezvous store is not stopped, as the run cannot survive that.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import kitlib as kit
from kitlib import config
from kitlib.errors import KitError

TRAINER = "trainers/digits_elastic.py"
BATCH, IMAGES = 64, 1437
PER_EPOCH = -(-IMAGES // BATCH)
STEP_SECONDS = 0.2
MIN_WORKERS, MAX_WORKERS, FIRST_WORKERS = 1, 4, 3
EXACT = 1e-9
WEIGHTS = {"kill": 10, "scale": 4, "pause": 3, "cut": 2, "switch off": 1}
UNDO = {"pause": "resume", "cut": "heal", "switch off": "switch on"}
UNDONE_AFTER = (2.0, 10.0)  # minimum and maximum seconds
END_SECONDS = 1200


@dataclass(frozen=True)
class Disturbance:
    """One planned disturbance.

    Attributes:
        at: Seconds from the start.
        what: A key of :data:`WEIGHTS`, or a value of :data:`UNDO`.
        pick: Between 0 and 1; selects a rank, node or number of those that exist at that time.
    """

    at: float
    what: str
    pick: float


def plan(seed: int, *, events: int, seconds: float) -> list[Disturbance]:
    """Plan the disturbances; the same arguments give the same plan.

    At most one process hangs and one node is unreachable at a time. All have recovered at the end.

    Example:
        >>> plan(7, events=2, seconds=10) == plan(7, events=2, seconds=10)
        True
    """
    generator, busy = random.Random(seed), {"pause": 0.0, "node": 0.0}
    disturbances: list[Disturbance] = []
    times = iter(sorted(generator.uniform(0, seconds) for _ in range(events)))
    while len(disturbances) < events:
        at = next(times)
        able = dict(WEIGHTS)
        for kind, until in busy.items():
            if at < until or len(disturbances) == events - 1:
                for what in ("pause",) if kind == "pause" else ("cut", "switch off"):
                    del able[what]
        what = generator.choices(list(able), list(able.values()))[0]
        disturbances.append(Disturbance(round(at, 2), what, generator.random()))
        if what in UNDO:
            back = at + generator.uniform(*UNDONE_AFTER)
            busy["pause" if what == "pause" else "node"] = back
            disturbances.append(Disturbance(round(back, 2), UNDO[what], disturbances[-1].pick))
    last = max(disturbance.at for disturbance in disturbances)
    disturbances = [
        replace(disturbance, at=round(disturbance.at * seconds / last, 2)) for disturbance in disturbances
    ]
    return sorted(disturbances, key=lambda event: event.at)


class PatientJob(kit.TorchElastic):
    """A job whose launchers survive all disturbances."""

    MAX_RESTARTS = 1000


class Soak:
    """One disturbed run.

    Args:
        cluster: A cluster whose nodes can be stopped.
        seconds: The duration of undisturbed training.
        report: Called with each event, as a dict.
    """

    def __init__(
        self, cluster: kit.Cluster, *, seconds: float, report: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cluster, self.report = cluster, report
        self.epochs = max(2, round(seconds / STEP_SECONDS / PER_EPOCH))
        self.workers = FIRST_WORKERS
        self._offline_node = ""  # the node that is isolated or stopped
        self._steps: dict[int, tuple[float, int]] = {}
        self._problems: list[str] = []

    def start(self) -> None:
        """Launch the run, and wait for its first steps."""
        volume = self.cluster.create_volume("soak", size="1Gi")
        flags = [*self.flags, "--checkpoint-dir=/checkpoints/soak", "--checkpoint-every=10"]
        job = PatientJob(
            TRAINER,
            nodes=FIRST_WORKERS,
            min_nodes=MIN_WORKERS,
            max_nodes=MAX_WORKERS,
            args=[*flags, f"--step-seconds={STEP_SECONDS}"],
            volumes={"/checkpoints": volume},
            name="soak",
        )
        self.run = kit.launch(job, cluster=self.cluster)
        deadline = time.monotonic() + END_SECONDS
        while not self.read_events() and time.monotonic() < deadline:
            time.sleep(1)
        pods = self.cluster.kube.get_all("Pod", labels=f"trainyard/run={self.run.name}")
        stores = {pod["spec"].get("nodeName") for pod in pods if "store" in pod["metadata"]["name"]}
        self.nodes = sorted({node["node"] for node in self.cluster.nodes()} - stores)

    @property
    def flags(self) -> list[str]:
        """The values that identical runs share."""
        return ["--float64", f"--epochs={self.epochs}", f"--global-batch-size={BATCH}", "--log-every=1"]

    def disturb(self, disturbances: Iterable[Disturbance]) -> int:
        """Apply the disturbances in order; return how many were possible."""
        start, count = time.monotonic(), 0
        for disturbance in disturbances:
            while (remaining := start + disturbance.at - time.monotonic()) > 0:
                time.sleep(min(remaining, 2))
            try:
                message, count = str(self._do(disturbance)), count + 1
            except KitError as error:  # for example, no worker is running
                message = f"failed: {error.what}"
            self.report(asdict(disturbance) | {"after": round(time.monotonic() - start, 2), "came": message})
            self.read_events()
        return count

    def _do(self, disturbance: Disturbance) -> object:
        match disturbance.what:
            case "kill" | "pause":
                return getattr(self.run, disturbance.what)(rank=int(disturbance.pick * self._world()))
            case "resume":
                return self.run.resume()
            case "scale":
                return self._scale(MIN_WORKERS + int(disturbance.pick * (MAX_WORKERS - MIN_WORKERS + 1)))
            case "cut" | "switch off":
                self._offline_node = self._node(disturbance.pick)
                (self.cluster.isolate if disturbance.what == "cut" else self.cluster.stop_node)(
                    self._offline_node
                )
            case "heal":
                self.cluster.reconnect(self._offline_node)
            case "switch on":
                self.cluster.start_node(self._offline_node)
                return f"{self._offline_node}; {self._scale(self.workers)}"  # its workers ended with it
        return self._offline_node

    def _node(self, pick: float) -> str:
        """Return a node whose loss leaves some worker: no controller replaces plain pods."""
        nodes = {pod["node"] for pod in self.run.pods() if pod["status"] == "Running"}
        first = int(pick * len(self.nodes))
        candidates = [*self.nodes[first:], *self.nodes[:first]]
        return next((node for node in candidates if nodes - {node}), candidates[0])

    def _scale(self, workers: int) -> object:
        self.workers = workers
        return self.run.scale(workers)

    def _world(self) -> int:
        """Return the number of ranks in the newest round."""
        frame = self.run.metrics("rendezvous")
        return 1 if frame.empty else int(frame.sort_values("time").iloc[-1]["world_size"])

    def read_events(self) -> int:
        """Read the workers' events; return the number of known steps."""
        with contextlib.suppress(KitError):
            for row in self.run.metrics("step").itertuples():
                loss, samples = self._steps.setdefault(row.step, (row.loss, int(row.samples)))
                if abs(loss - row.loss) > EXACT or samples != row.samples:
                    self._problems.append(f"step {row.step} was reported twice with different values")
        return len(self._steps)

    def finish(self) -> None:
        """Restore all workers, and wait for the end.

        Raises:
            RuntimeError: The run failed, or did not finish in time.
        """
        self._scale(FIRST_WORKERS)
        deadline = time.monotonic() + END_SECONDS
        while not self.run.status.finished:
            self.report({"what": "wait", "steps": self.read_events(), "of": self.epochs * PER_EPOCH})
            if time.monotonic() > deadline:
                raise RuntimeError(f"the run has not ended after {END_SECONDS} s: {self.run.status}")
            time.sleep(5)
        self.read_events()
        if self.run.status.phase != "Succeeded":
            raise RuntimeError(f"the run failed: {self.run.status}")

    def verdict(self) -> dict[str, Any]:
        """Compare with an undisturbed run on this machine; return figures, and problems if any."""
        reference = undisturbed(self.flags)
        problems = list(self._problems)
        missing = sorted(reference.keys() - self._steps.keys())
        if missing:
            problems.append(f"{len(missing)} steps were not reported, the first {missing[:5]}")
        counted = sum(samples for _, samples in self._steps.values())
        if counted != self.epochs * IMAGES:
            problems.append(f"{counted} samples counted, not {self.epochs * IMAGES}")
        common = reference.keys() & self._steps.keys()
        furthest = max((abs(reference[rank][0] - self._steps[rank][0]) for rank in common), default=0.0)
        if furthest > EXACT:
            problems.append(f"a loss differs by {furthest:g}")
        figures = {"steps": len(self._steps), "epochs": self.epochs, "samples": counted, "furthest": furthest}
        rounds = self.run.metrics("rendezvous")
        return figures | {"rounds": int(rounds["round"].nunique()), "problems": problems}


def undisturbed(flags: list[str]) -> dict[int, tuple[float, int]]:
    """Return loss and samples of each step of the same training by one process."""
    command = [sys.executable, str(config.find(TRAINER)), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True, timeout=1200
    )
    events = [json.loads(line) for line in process.stdout.splitlines()]
    return {event["step"]: (event["loss"], event["samples"]) for event in events if event["event"] == "step"}


@contextlib.contextmanager
def own_cluster() -> Iterator[kit.Cluster]:
    """Create a local cluster with its own state directory."""
    with tempfile.TemporaryDirectory(prefix="trainyard-soak-") as folder:
        previous = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        try:
            cluster = kit.create_cluster("local", name="soak", nodes=4)
            try:
                yield cluster
            finally:
                cluster.delete()
        finally:
            os.environ.pop("XDG_STATE_HOME")
            os.environ |= {"XDG_STATE_HOME": previous} if previous else {}


def soak(
    cluster: kit.Cluster, *, seed: int, events: int, seconds: float, report: Callable[..., Any]
) -> dict[str, Any]:
    """Disturb a run on a cluster; return the verdict."""
    disturbances = plan(seed, events=events, seconds=seconds)
    running_soak = Soak(cluster, seconds=seconds, report=report)
    running_soak.start()
    try:
        count = running_soak.disturb(disturbances)
        running_soak.finish()
        return {"seed": seed, "disturbances": len(disturbances), "done": count} | running_soak.verdict()
    finally:
        running_soak.run.delete()


def main(argv: list[str] | None = None) -> int:
    """Return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="by default a random one")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args(argv)
    seed = random.randrange(10**6) if options.seed is None else options.seed

    def report(record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)

    report({"seed": seed, "again": f"tools/dev.py soak-elastic SEED={seed}"})
    with own_cluster() as cluster:
        verdict = soak(cluster, seed=seed, events=options.events, seconds=options.seconds, report=report)
    report(verdict)
    return 1 if verdict["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
