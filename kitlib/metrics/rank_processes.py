"""In which pod, and as which process, a rank trains: by what the trainers themselves have said. Pure.

Ranks are given anew at each rendezvous, so only the newest one counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kitlib.k8s import pods
from kitlib.k8s.manifests import Object
from kitlib.metrics.events import Event

MEETINGS = ("rendezvous", "start")


@dataclass(frozen=True)
class RankProcess:
    """Where a rank is.

    Attributes:
        rank: The rank; of parameter servers the name.
        pod: The pod.
        pid: The process, as it is numbered in its pod; None if its trainer does not say.
    """

    rank: int | str
    pod: Object
    pid: int | None


def replica_processes(said: Iterable[tuple[Object, Event]]) -> dict[int | str, RankProcess]:
    """Return where the master, the servers and the workers are, which do not meet: by what each said last."""
    found = {}
    for pod, event in said:
        if event.event == "start":
            pid = event.fields.get("pid")
            seat = pods.replica_id(pod)
            found[seat] = RankProcess(seat, pod, pid if isinstance(pid, int) else None)
    return dict(sorted(found.items()))


def rank_processes(said: Iterable[tuple[Object, Event]]) -> dict[int, RankProcess]:
    """Return where the ranks are.

    Args:
        said: What trainers reported, each with the pod in whose log it stands.
    """
    told = [(pod, event) for pod, event in said if event.event in MEETINGS]
    rounds = [each for each in told if each[1].event == "rendezvous"]
    told = sorted(rounds or told, key=lambda each: each[1].time)
    if not told:
        return {}
    newest = told[-1][1]
    found = {}
    for pod, event in told:
        if event.fields.get("round") == newest.fields.get("round") and event.rank < newest.world_size:
            pid = event.fields.get("pid")
            found[event.rank] = RankProcess(event.rank, pod, pid if isinstance(pid, int) else None)
    return dict(sorted(found.items()))
