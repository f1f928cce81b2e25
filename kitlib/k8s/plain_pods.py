"""Runs of plain pods, which no controller looks after: their worker pods, and how they and the run are doing.
Pure.

The main object of such a run is a PodTemplate: Kubernetes keeps it, checks it, and makes nothing of it. What
a worker is like is in it, so that whoever scales the run, from whatever kernel, makes the same pods again.
"""

import copy
from collections.abc import Iterable

from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object

KIND = "PodTemplate"
REPLICAS, FEWEST, MOST = "trainyard/replicas", "trainyard/min-replicas", "trainyard/max-replicas"


def worker(template: Object, number: int) -> Object:
    """Return the pod of a worker, from the run's PodTemplate."""
    run, pattern = template["metadata"], copy.deepcopy(template["template"])
    labels = (pattern["metadata"].get("labels") or {}) | {names.WORKER: str(number)}
    name = f"{run['name']}-{number}"
    meta = pattern["metadata"] | {"name": name, "labels": labels}
    meta.pop("creationTimestamp", None)  # the API server writes it as null
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pattern["spec"] | {"hostname": name}}


def limits(template: Object) -> tuple[int, int, int]:
    """Return how many workers a run wants, the fewest with which it trains, and the most it may have."""
    notes = template["metadata"].get("annotations") or {}
    wanted = int(notes.get(REPLICAS, 1))
    return wanted, int(notes.get(FEWEST, wanted)), int(notes.get(MOST, wanted))


def active(pod: Object) -> bool:
    """Return whether a worker trains, or will: not one that has ended, is leaving, or is out of reach."""
    return not (pods.finished(pod) or pod["metadata"].get("deletionTimestamp") or pods.node_unreachable(pod))


def succeeded(workers: Iterable[Object]) -> bool:
    """Return whether the training has ended well: nobody trains any more, and somebody came to the end."""
    workers = list(workers)
    return not any(map(active, workers)) and any(pods.phase(each) == "Succeeded" for each in workers)


def failure(workers: Iterable[Object]) -> str | None:
    """Return why the training cannot go on, or None if it can, or has ended well.

    A worker that is lost, or gave up, does not fail the run while others train. One on a node that does not
    answer may train still: while nobody else has ended, its silence is no end.
    """
    workers = list(workers)
    silent = any(pods.node_unreachable(each) for each in workers if not pods.finished(each))
    failed = any(pods.phase(each) == "Failed" for each in workers)
    if any(map(active, workers)) or succeeded(workers) or (silent and not failed):
        return None
    return "every worker has failed" if failed else "its workers were deleted"
