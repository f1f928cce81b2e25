"""The pod and process of each rank, from the trainers' events: the target of a signal to a rank. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kitlib.k8s import pods
from kitlib.k8s.manifests import Object
from kitlib.metrics.events import Event, whole_number


@dataclass(frozen=True)
class RankProcess:
    """The pod of a rank, and its process in the pod's PID namespace, if the trainer reports it."""

    rank: int | str
    pod: Object
    pid: int | None


def replica_processes(reported: Iterable[tuple[Object, Event]]) -> dict[int | str, RankProcess]:
    """Locate the master, servers and workers of a parameter server run, by their last ``start`` events."""
    by_replica = {}
    for pod, event in reported:
        if event.event == "start":
            name = pods.replica_id(pod)
            by_replica[name] = RankProcess(name, pod, whole_number(event.fields.get("pid")))
    return dict(sorted(by_replica.items()))


def rank_processes(reported: Iterable[tuple[Object, Event]]) -> dict[int | str, RankProcess]:
    """Locate the ranks of the newest rendezvous, by the events in each pod's log."""
    reported = list(reported)
    joins = [pair for pair in reported if pair[1].event == "rendezvous"]
    joins = joins or [pair for pair in reported if pair[1].event == "start"]
    if not joins:
        return {}
    joins.sort(key=lambda pair: pair[1].time)
    newest = joins[-1][1]
    by_rank = {}
    for pod, event in joins:
        if event.fields.get("round") == newest.fields.get("round") and event.rank < newest.world_size:
            by_rank[event.rank] = RankProcess(event.rank, pod, whole_number(event.fields.get("pid")))
    return dict(sorted(by_rank.items()))
