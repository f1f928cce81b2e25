"""Plan disturbances and their times as a pure function of the seed.

Several things happen side by side. A lane is a sequence in which one thing happens at a time; lanes know
nothing of each other, so one that is left out changes no other.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

UNDO = "undo "
FORGET_KUBELETS = 1 / 3  # of the time: the last one must live long enough for its memory to be judged


@dataclass(frozen=True)
class Disturbance:
    """Something to be done.

    Attributes:
        at: Seconds from the beginning.
        lane: Disturbances of one lane are done one after the other.
        what: A key of a lane's weights, or `UNDO` and a key.
        pick: Between 0 and 1: which of the attendees, objects or nodes that there are at that time.
    """

    at: float
    lane: str
    what: str
    pick: float


@dataclass(frozen=True)
class Lane:
    """A random sequence of disturbances.

    Attributes:
        every: Mean seconds from the end of one to the next.
        weights: How often each kind is chosen, relative to the others.
        lasts: Seconds, at least and at most, after which each is undone; None where there is nothing to undo.
        until: Share of the time after which nothing more begins.
    """

    every: float
    weights: Mapping[str, float]
    lasts: tuple[float, float] | None = None
    until: float = 1.0


KILLED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "metrics-server", "gateway")
LANES = {
    "attendees": Lane(
        every=0.7,
        weights={
            "create": 8,
            "update": 6,
            "delete": 4,
            "job": 4,
            "delete job": 3,
            "exec": 3,
            "logs": 1,
            "port-forward": 1,
        },
    ),
    "components": Lane(every=25, weights=dict.fromkeys((*KILLED, "forkserver"), 1)),
    "kubelet": Lane(every=60, weights={"kubelet": 1}, until=FORGET_KUBELETS),
    "nodes": Lane(every=20, weights={"stop": 1, "isolate": 1}, lasts=(5, 40)),
    # An attendee who takes all that there is, in turns: without it, the others are as fast as they can be.
    "attacker": Lane(every=30, weights={"attack": 1}, lasts=(30, 90)),
    # Clients of Kubernetes read their certificates again every five minutes.
    "certificates": Lane(every=240, weights={"shorten": 1}, lasts=(300, 400)),
    "disk": Lane(every=120, weights={"fill": 1}, lasts=(5, 30)),
}


def plan(seed: int, *, seconds: float, without: Collection[str] = ()) -> list[Disturbance]:
    """Plan the disturbances; the same arguments give the same plan. Lasting ones are undone in time.

    Example:
        >>> plan(7, seconds=60) == plan(7, seconds=60)
        True
    """
    disturbances: list[Disturbance] = []
    for name, lane in LANES.items():
        if name not in without:
            disturbances += _sequence(random.Random(f"{seed} {name}"), name, lane, seconds)
    return sorted(disturbances, key=lambda disturbance: (disturbance.at, disturbance.lane))


def _sequence(generator: random.Random, name: str, lane: Lane, seconds: float) -> list[Disturbance]:
    disturbances: list[Disturbance] = []
    now = 0.0
    while True:
        now += generator.expovariate(1 / lane.every)
        what = generator.choices(list(lane.weights), list(lane.weights.values()))[0]
        pick, lasts = generator.random(), generator.uniform(*lane.lasts) if lane.lasts else 0.0
        if now + lasts > seconds * lane.until:
            return disturbances
        disturbances.append(Disturbance(_hundredths(now), name, what, pick))
        if lane.lasts:
            now += lasts
            disturbances.append(Disturbance(_hundredths(now), name, UNDO + what, pick))


def _hundredths(seconds: float) -> float:
    return int(100 * seconds) / 100
