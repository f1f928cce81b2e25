"""Disturb an elastic run at random, and check that no training step was lost or repeated.

``dev.py soak-elastic`` makes a local cluster, trains by ``trainers/digits_elastic.py``, and for ten minutes
kills and stops processes, cuts nodes off, switches them off, and scales; each undone after a while. When the
run has come to its end, every step must have counted its samples, as many as there are in all its epochs, and
each loss must be that of an undisturbed run, to 1e-9.

What is done, and when, depends on the seed alone: ``tools/dev.py soak-elastic SEED=7``, or
``.venv/bin/python tools/soak_elastic.py --seed 7 --events 200 --seconds 600``. It is printed as JSON, a line
each, with what came of it. The node of the rendezvous store stays on: losing that is another lesson.
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
UNDONE_AFTER = (2.0, 10.0)  # seconds, at least and at most
END_SECONDS = 1200


@dataclass(frozen=True)
class Disturbance:
    """Something to be done.

    Attributes:
        at: Seconds from the beginning.
        what: A key of :data:`WEIGHTS`, or a value of :data:`UNDO`.
        pick: Between 0 and 1: which of the ranks, nodes or numbers that there are at that time.
    """

    at: float
    what: str
    pick: float


def plan(seed: int, *, events: int, seconds: float) -> list[Disturbance]:
    """Plan the disturbances; the same arguments give the same plan.

    At most one process hangs and one node is out of reach at a time. What hangs or is out is back at the end.

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
        cluster: Where; it needs nodes that can be switched off.
        seconds: How long the training lasts at least, if nothing happens to it.
        say: Called with what happens, as a dict.
    """

    def __init__(
        self, cluster: kit.Cluster, *, seconds: float, say: Callable[[dict[str, Any]], None]
    ) -> None:
        self.cluster, self.say = cluster, say
        self.epochs = max(2, round(seconds / STEP_SECONDS / PER_EPOCH))
        self.workers = FIRST_WORKERS
        self._out = ""  # the node that is cut off, or switched off
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
        while not self.listen() and time.monotonic() < deadline:
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
        began, done = time.monotonic(), 0
        for disturbance in disturbances:
            while (left := began + disturbance.at - time.monotonic()) > 0:
                time.sleep(min(left, 2))
            try:
                message, done = str(self._do(disturbance)), done + 1
            except KitError as error:  # for example, no worker runs just then
                message = f"could not be done: {error.what}"
            self.say(asdict(disturbance) | {"after": round(time.monotonic() - began, 2), "came": message})
            self.listen()
        return done

    def _do(self, disturbance: Disturbance) -> object:
        match disturbance.what:
            case "kill" | "pause":
                return getattr(self.run, disturbance.what)(rank=int(disturbance.pick * self._world()))
            case "resume":
                return self.run.resume()
            case "scale":
                return self._scale(MIN_WORKERS + int(disturbance.pick * (MAX_WORKERS - MIN_WORKERS + 1)))
            case "cut" | "switch off":
                self._out = self._node(disturbance.pick)
                (self.cluster.isolate if disturbance.what == "cut" else self.cluster.stop_node)(self._out)
            case "heal":
                self.cluster.reconnect(self._out)
            case "switch on":
                self.cluster.start_node(self._out)
                return f"{self._out}; {self._scale(self.workers)}"  # its workers ended with it
        return self._out

    def _node(self, pick: float) -> str:
        """Return a node whose loss leaves some worker: no controller replaces plain pods."""
        nodes = {pod["node"] for pod in self.run.pods() if pod["status"] == "Running"}
        first = int(pick * len(self.nodes))
        order = [*self.nodes[first:], *self.nodes[:first]]
        return next((node for node in order if nodes - {node}), order[0])

    def _scale(self, workers: int) -> object:
        self.workers = workers
        return self.run.scale(workers)

    def _world(self) -> int:
        """Return the number of ranks in the newest round."""
        frame = self.run.metrics("rendezvous")
        return 1 if frame.empty else int(frame.sort_values("time").iloc[-1]["world_size"])

    def listen(self) -> int:
        """Read the workers' events; return the number of known steps."""
        with contextlib.suppress(KitError):
            for row in self.run.metrics("step").itertuples():
                loss, samples = self._steps.setdefault(row.step, (row.loss, int(row.samples)))
                if abs(loss - row.loss) > EXACT or samples != row.samples:
                    self._problems.append(f"step {row.step} was told twice, and differently")
        return len(self._steps)

    def finish(self) -> None:
        """Restore all workers, and wait for the end.

        Raises:
            RuntimeError: It did not come in time, or the run failed.
        """
        self._scale(FIRST_WORKERS)
        deadline = time.monotonic() + END_SECONDS
        while not self.run.status.finished:
            self.say({"what": "wait", "steps": self.listen(), "of": self.epochs * PER_EPOCH})
            if time.monotonic() > deadline:
                raise RuntimeError(f"the run has not ended after {END_SECONDS} s: {self.run.status}")
            time.sleep(5)
        self.listen()
        if self.run.status.phase != "Succeeded":
            raise RuntimeError(f"the run failed: {self.run.status}")

    def verdict(self) -> dict[str, Any]:
        """Compare with an undisturbed run on this machine; return figures, and problems if any."""
        reference = undisturbed(self.flags)
        problems = list(self._problems)
        missing = sorted(reference.keys() - self._steps.keys())
        if missing:
            problems.append(f"{len(missing)} steps were not told, the first {missing[:5]}")
        counted = sum(samples for _, samples in self._steps.values())
        if counted != self.epochs * IMAGES:
            problems.append(f"{counted} samples counted, not {self.epochs * IMAGES}")
        both = reference.keys() & self._steps.keys()
        furthest = max((abs(reference[rank][0] - self._steps[rank][0]) for rank in both), default=0.0)
        if furthest > EXACT:
            problems.append(f"a loss differs by {furthest:g}")
        figures = {"steps": len(self._steps), "epochs": self.epochs, "samples": counted, "furthest": furthest}
        rounds = self.run.metrics("rendezvous")
        return figures | {"rounds": int(rounds["round"].nunique()), "problems": problems}


def undisturbed(flags: list[str]) -> dict[int, tuple[float, int]]:
    """Return loss and samples of each step of the same training by one process."""
    command = [sys.executable, str(config.find(TRAINER)), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=1200)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return {event["step"]: (event["loss"], event["samples"]) for event in events if event["event"] == "step"}


@contextlib.contextmanager
def own_cluster() -> Iterator[kit.Cluster]:
    """A local cluster with its own state directory."""
    with tempfile.TemporaryDirectory(prefix="trainyard-soak-") as folder:
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")
        try:
            cluster = kit.create_cluster("local", name="soak", nodes=4)
            try:
                yield cluster
            finally:
                cluster.delete()
        finally:
            os.environ.pop("XDG_STATE_HOME")
            os.environ |= {"XDG_STATE_HOME": before} if before else {}


def soak(
    cluster: kit.Cluster, *, seed: int, events: int, seconds: float, say: Callable[..., Any]
) -> dict[str, Any]:
    """Disturb a run on a cluster; return the verdict."""
    disturbances = plan(seed, events=events, seconds=seconds)
    running_soak = Soak(cluster, seconds=seconds, say=say)
    running_soak.start()
    try:
        done = running_soak.disturb(disturbances)
        running_soak.finish()
        return {"seed": seed, "disturbances": len(disturbances), "done": done} | running_soak.verdict()
    finally:
        running_soak.run.delete()


def main(argv: list[str] | None = None) -> int:
    """Return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args(argv)
    seed = random.randrange(10**6) if options.seed is None else options.seed

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), flush=True)

    say({"seed": seed, "again": f"tools/dev.py soak-elastic SEED={seed}"})
    with own_cluster() as cluster:
        verdict = soak(cluster, seed=seed, events=options.events, seconds=options.seconds, say=say)
    say(verdict)
    return 1 if verdict["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
