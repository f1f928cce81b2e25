"""Plan disturbances and their times as a pure function of the seed.

Lanes run in parallel. A lane is a sequence of disturbances; lanes are independent, so omitting one does not
change the others.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

UNDO = "undo "
FORGET_KUBELETS = 1 / 3  # of the time, so that the last kubelet runs long enough to check its memory


@dataclass(frozen=True)
class Disturbance:
    """One planned disturbance.

    Attributes:
        at: Seconds from the start.
        lane: The lane; its disturbances are sequential.
        what: A key of a lane's weights, or `UNDO` and a key.
        pick: Between 0 and 1; selects an attendee, object or node of those that exist at that time.
    """

    at: float
    lane: str
    what: str
    pick: float


@dataclass(frozen=True)
class Lane:
    """A random sequence of disturbances.

    Attributes:
        mean_seconds: Mean time from the end of one to the start of the next.
        weights: The relative frequency of each kind.
        lasts: Minimum and maximum seconds after which each is undone; None if there is nothing to undo.
        until: Share of the time after which none starts.
    """

    mean_seconds: float
    weights: Mapping[str, float]
    lasts: tuple[float, float] | None = None
    until: float = 1.0


KILLED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "metrics-server", "gateway")
LANES = {
    "attendees": Lane(
        mean_seconds=0.7,
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
    "components": Lane(mean_seconds=25, weights=dict.fromkeys((*KILLED, "forkserver"), 1)),
    "kubelet": Lane(mean_seconds=60, weights={"kubelet": 1}, until=FORGET_KUBELETS),
    "nodes": Lane(mean_seconds=20, weights={"stop": 1, "isolate": 1}, lasts=(5, 40)),
    # The attacker pauses in turns, so that the speed of others without attacks is measured as well.
    "attacker": Lane(mean_seconds=30, weights={"attack": 1}, lasts=(30, 90)),
    # Clients of Kubernetes read their certificates again every five minutes.
    "certificates": Lane(mean_seconds=240, weights={"shorten": 1}, lasts=(300, 400)),
    "disk": Lane(mean_seconds=120, weights={"fill": 1}, lasts=(5, 30)),
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
    at = 0.0
    while True:
        at += generator.expovariate(1 / lane.mean_seconds)
        what = generator.choices(list(lane.weights), list(lane.weights.values()))[0]
        pick, lasts = generator.random(), generator.uniform(*lane.lasts) if lane.lasts else 0.0
        if at + lasts > seconds * lane.until:
            return disturbances
        disturbances.append(Disturbance(_hundredths(at), name, what, pick))
        if lane.lasts:
            at += lasts
            disturbances.append(Disturbance(_hundredths(at), name, UNDO + what, pick))


def _hundredths(seconds: float) -> float:
    return int(100 * seconds) / 100
