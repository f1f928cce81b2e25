"""A short elastic run as its workers tell it: the JSON lines of each, and the Events of what was done."""

import json
from datetime import UTC, datetime

from kitlib.metrics import events
from trainyard_kit.elastic_lab.rendezvous import WorkerLog

BEGAN = 1_700_000_000.0


class Story:
    """Workers that write JSON lines, at seconds from the beginning."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.written = {worker: [] for worker in nodes}
        self.events = []

    def say(self, at, worker, event, *, rank, world, **fields):
        line = {"event": event, "time": BEGAN + at, "rank": rank, "world_size": world} | fields
        self.written[worker].append(json.dumps(line))

    def meet(self, at, number, workers, *, reason, step, source="live", leader=0, waited=1.0, pids=None):
        """Have workers complete a round, in the order of their ranks."""
        for rank, worker in enumerate(workers):
            pid = (pids or {}).get(worker, 17)
            place = {"host": worker, "pid": pid, "seconds": waited, "reason": reason}
            state = {"leader": leader if source == "live" else None, "source": source}
            where = {"epoch": 0, "step": step}
            self.say(
                at,
                worker,
                "rendezvous",
                rank=rank,
                world=len(workers),
                round=number,
                **place,
                **state,
                **where,
            )

    def train(self, at, numbers, workers, *, every=0.2, epoch=0):
        """Have them do steps; return when the last one was done."""
        for number in numbers:
            for rank, worker in enumerate(workers):
                fields = {
                    "epoch": epoch,
                    "step": number,
                    "loss": 2.0 / (number + 1),
                    "samples": 32,
                    "images_per_s": 160.0,
                }
                self.say(at, worker, "step", rank=rank, world=len(workers), **fields)
            at += every
        return at - every

    def happen(self, at, reason, kind, name, why=""):
        """Have an Event told; at a whole second if ``at`` is an integer."""
        when = datetime.fromtimestamp(BEGAN + at, UTC)
        exact = (
            {"eventTime": when.isoformat()} if isinstance(at, float) else {"lastTimestamp": when.isoformat()}
        )
        meta = {"name": f"e{len(self.events)}", "creationTimestamp": when.replace(microsecond=0).isoformat()}
        about = {"kind": kind, "name": name}
        self.events.append(
            {"metadata": meta, "reason": reason, "message": why, "involvedObject": about} | exact
        )

    def logs(self, *, without=()):
        return [
            WorkerLog(worker, self.nodes[worker], tuple(events.parse(lines)))
            for worker, lines in self.written.items()
            if worker not in without
        ]


def lab():
    """Return two workers of which one is killed, comes back, hangs and goes on; then they become three."""
    story = Story({"lab-0": "node-0", "lab-1": "node-1", "lab-2": "node-2"})
    alone, pair, trio = ["lab-0"], ["lab-0", "lab-1"], ["lab-0", "lab-1", "lab-2"]
    story.meet(1.0, 1, pair, reason="start", step=1, source="fresh")
    story.train(1.2, range(1, 6), pair)  # to 2.0
    story.say(
        2.2, "lab-1", "step", rank=1, world=2, epoch=0, step=6, loss=0.3, samples=32
    )  # it alone got there
    story.happen(2.25, "Killed", "Pod", "lab-1", "SIGKILL to rank 1, process 17")
    story.say(2.3, "lab-0", "lost", rank=0, world=2, epoch=0, step=6, reason="Connection reset by peer")
    story.meet(3.0, 2, alone, reason="peer lost", step=6, waited=0.7)
    story.train(3.2, range(6, 9), alone)  # to 3.6
    story.meet(4.5, 3, pair, reason="join", step=9, pids={"lab-1": 40}, waited=0.8)
    story.train(4.7, range(9, 12), pair)  # to 5.1
    story.happen(5.25, "Paused", "Pod", "lab-1", "SIGSTOP to rank 1, process 40")
    story.say(10.3, "lab-0", "lost", rank=0, world=2, epoch=0, step=12, reason="timed out")
    story.meet(11.0, 4, alone, reason="peer silent", step=12, waited=0.7)
    story.train(11.2, range(12, 16), alone)  # to 11.8
    story.happen(11.85, "Resumed", "Pod", "lab-1", "SIGCONT to rank 1, process 40")
    story.say(12.0, "lab-1", "lost", rank=1, world=2, epoch=0, step=12, reason="the others have gone on")
    story.meet(12.5, 5, pair, reason="join", step=16, pids={"lab-1": 40}, waited=0.4)
    story.train(12.7, range(16, 19), pair)  # to 13.1
    story.happen(13.15, "Scaled", "Pod", "lab-0", "scaled 2 → 3")
    story.meet(14.5, 6, trio, reason="join", step=19, pids={"lab-1": 40, "lab-2": 17}, waited=0.5)
    end = story.train(14.7, range(19, 23), trio)
    for rank, worker in enumerate(trio):
        story.say(end + 0.1, worker, "end", rank=rank, world=3, steps=22)
    return story
