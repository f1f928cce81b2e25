"""Pod placement over time: which pods ran on which node, and when. Pure.

It is recorded while pods exist, because the API has no information about deleted pods.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kitlib.display.tables import Table, parse_time
from kitlib.k8s import job_kinds, names, pods
from kitlib.k8s.manifests import Object

WAITING, STARTING, RUNNING, LEAVING = "waiting", "starting", "running", "leaving"
MAX_LOSSES = 4096


@dataclass(frozen=True)
class PodInterval:
    """A pod in one state on one node.

    Attributes:
        uid: Of the pod.
        pod: Name of the pod.
        group: Its run, or otherwise its job or app.
        state: ``waiting`` for a node, ``starting`` on one, ``running``, or ``leaving`` after its deletion.
        node: Empty while it waits.
        began, ended: Seconds since 1970; ``ended`` is None while the state lasts.
    """

    uid: str
    pod: str
    group: str
    state: str
    node: str
    began: float
    ended: float | None = None


class Placement:
    """The recorded placement of pods; call `observe` from one thread."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self.nodes: list[str] = list(nodes)
        self.intervals: list[PodInterval] = []
        self.ends: dict[str, str] = {}  # how it ended, by uid
        self.losses: dict[str, list[tuple[float, float]]] = {}  # time and loss, by group
        self._open: dict[str, int] = {}  # index of the current interval, by uid
        self._observed = False

    def observe(self, pods: Iterable[Object], *, now: float) -> None:
        """Record all pods of the cluster at one time."""
        uids = set()
        for pod in pods:
            uid = pod["metadata"]["uid"]
            uids.add(uid)
            self._observe_one(uid, pod, now)
        for uid in set(self._open) - uids:
            self._close(uid, now)
            self.ends.setdefault(uid, "deleted")
        self._observed = True

    def _observe_one(self, uid: str, pod: Object, now: float) -> None:
        state, node = _state_of(pod)
        if end := _end(pod):
            self.ends.setdefault(uid, end)
        last = self.intervals[self._open[uid]] if uid in self._open else None
        if last is not None and (last.state, last.node) == (state, node):
            return
        if last is not None:
            self._close(uid, now)
        if not state or (last is None and pods.finished(pod)):
            return
        if node and node not in self.nodes:
            self.nodes.append(node)
        meta = pod["metadata"]
        # At the first observation use the API's times, which have a resolution of a second.
        began = now if self._observed or state == LEAVING else min(now, _since(pod, state))
        self._open[uid] = len(self.intervals)
        self.intervals.append(PodInterval(uid, meta["name"], group_of(pod), state, node, began))

    def _close(self, uid: str, now: float) -> None:
        index = self._open.pop(uid)
        self.intervals[index] = replace(self.intervals[index], ended=now)

    def add_loss(self, group: str, time: float, loss: float) -> None:
        """Record a loss; beyond `MAX_LOSSES`, every other one is dropped."""
        losses = self.losses.setdefault(group, [])
        losses.append((time, loss))
        if len(losses) > MAX_LOSSES:
            del losses[1::2]

    def seconds(self, uid: str, *states: str, now: float) -> float:
        """Sum the time of a pod in these states."""
        own = (interval for interval in self.intervals if interval.uid == uid and interval.state in states)
        return sum((now if interval.ended is None else interval.ended) - interval.began for interval in own)

    def table(self, *, now: float) -> Table:
        """Tabulate the pods, by creation: how long each waited and ran, and how it ended."""
        rows = []
        for uid in dict.fromkeys(interval.uid for interval in self.intervals):
            last = [interval for interval in self.intervals if interval.uid == uid][-1]
            waited = self.seconds(uid, WAITING, STARTING, now=now)
            ran = self.seconds(uid, RUNNING, LEAVING, now=now)
            end = last.state if uid in self._open else self.ends.get(uid, "")
            rows.append((last.pod, last.group, last.node, f"{waited:.1f}", f"{ran:.1f}", end))
        columns = ("pod", "of", "node", "waited, s", "ran, s", "end")
        return Table(columns, rows, empty="no pods observed")


def group_of(pod: Object) -> str:
    """Return a pod's run, or otherwise its job or app, or its name."""
    labels = pod["metadata"].get("labels") or {}
    job_labels = [*(kind.pods for kind in job_kinds.JOBS), *(kind.foreign_label for kind in job_kinds.JOBS)]
    groups = (labels[label] for label in (names.RUN, *job_labels, "app") if label in labels)
    return next(groups, pod["metadata"]["name"])


def short(name: str) -> str:
    """Shorten a pod's name to its role and number: ``master``, ``ps 0``, ``w3``, ``2``; empty without any."""
    match = re.search(r"-(?:(master)(?:-\d+)?|(?:(ps)-|(w)orker-)?(\d+))$", name)
    master, server, worker, number = match.groups("") if match else [""] * 4
    return master or f"{server} {worker}{number}".strip()


def _state_of(pod: Object) -> tuple[str, str]:
    node = pod["spec"].get("nodeName") or ""
    if pods.finished(pod):
        return "", node
    if pods.deleted(pod):
        return (LEAVING, node) if node else ("", "")
    if not node:
        return WAITING, ""
    return (RUNNING if pods.phase(pod) == "Running" else STARTING), node


def _since(pod: Object, state: str) -> float:
    created = pod["metadata"]["creationTimestamp"]
    began = created if state != RUNNING else ((pod.get("status") or {}).get("startTime") or created)
    return parse_time(began).timestamp()


def _end(pod: Object) -> str:
    disruption = pods.condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return "preempted" if disruption.get("reason") == "PreemptionByScheduler" else "evicted"
    if pods.finished(pod):
        return "done" if pods.phase(pod) == "Succeeded" else "failed"
    return "deleted" if pods.deleted(pod) else ""
