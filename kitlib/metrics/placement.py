"""Who ran where, and when: what a cluster's pods did, as it was seen while they did it. Pure.

Pods that were deleted leave no trace in the cluster, so somebody has to have looked. Where the looks come
from is in `widgets.placement`, what it looks like in `widgets.plots`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kitlib.display.tables import Table, parse_time
from kitlib.k8s import job_kinds, names, pods
from kitlib.k8s.manifests import Object

WAITING, STARTING, RUNNING, LEAVING = "waiting", "starting", "running", "leaving"
OF_OTHERS = ("elasticdl-job-name", names.OPERATORS_JOB_NAME, names.JOB_NAME, "app")
MOST_LOSSES = 4096


@dataclass(frozen=True)
class Stay:
    """A pod in one state in one place.

    Attributes:
        uid: The pod's, which no other one has, whatever its name.
        pod: Its name.
        group: The run that it belongs to, or else the job or app.
        state: ``waiting`` for a node, ``starting`` on one, ``running``, or ``leaving`` after it was told to.
        node: Where; empty while it waits.
        began, ended: Seconds since 1970; ``ended`` is None while it lasts.
    """

    uid: str
    pod: str
    group: str
    state: str
    node: str
    began: float
    ended: float | None = None


class Placement:
    """Looks at pods in, stays out; add from one thread.

    Args:
        nodes: Those that are there from the beginning, whether or not they ever have a pod.

    Example:
        >>> placement = Placement(["node-0"])
        >>> placement.see([pod], now=time.time())
        >>> placement.stays
    """

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self.nodes = list(nodes)
        self.stays: list[Stay] = []
        self.ends: dict[str, str] = {}  # by uid: how it ended
        self.losses: dict[str, list[tuple[float, float]]] = {}  # by group: when, and what
        self._open: dict[str, int] = {}  # by uid: which of the stays lasts
        self._looked = False

    def see(self, seen: Iterable[Object], *, now: float) -> None:
        """Take in all pods that there are at a moment."""
        there = set()
        for pod in seen:
            uid = pod["metadata"]["uid"]
            there.add(uid)
            self._see_one(uid, pod, now)
        for uid in set(self._open) - there:
            self._close(uid, now)
            self.ends.setdefault(uid, "deleted")
        self._looked = True

    def _see_one(self, uid: str, pod: Object, now: float) -> None:
        state, node = _where(pod)
        if how := _end(pod):
            self.ends.setdefault(uid, how)
        last = self.stays[self._open[uid]] if uid in self._open else None
        if last is not None and (last.state, last.node) == (state, node):
            return
        if last is not None:
            self._close(uid, now)
        if not state or (last is None and pods.finished(pod)):
            return
        if node and node not in self.nodes:
            self.nodes.append(node)
        meta = pod["metadata"]
        # Before the first look, what the API says has to do; it knows whole seconds alone.
        began = now if self._looked or state == LEAVING else min(now, _since(pod, state))
        self._open[uid] = len(self.stays)
        self.stays.append(Stay(uid, meta["name"], group_of(pod), state, node, began))

    def _close(self, uid: str, now: float) -> None:
        index = self._open.pop(uid)
        self.stays[index] = replace(self.stays[index], ended=now)

    def hear(self, group: str, time: float, loss: float) -> None:
        """Take in a loss that a trainer reported; of very many, every other one is dropped."""
        every = self.losses.setdefault(group, [])
        every.append((time, loss))
        if len(every) > MOST_LOSSES:
            del every[1::2]

    def seconds(self, uid: str, *states: str, now: float) -> float:
        """Return how long a pod has been in these states."""
        mine = (each for each in self.stays if each.uid == uid and each.state in states)
        return sum((now if each.ended is None else each.ended) - each.began for each in mine)

    def table(self, *, now: float) -> Table:
        """Return a row a pod, in the order in which they came: how long it waited and ran, and its end."""
        rows = []
        for uid in dict.fromkeys(each.uid for each in self.stays):
            last = [each for each in self.stays if each.uid == uid][-1]
            waited = self.seconds(uid, WAITING, STARTING, now=now)
            ran = self.seconds(uid, RUNNING, LEAVING, now=now)
            end = last.state if uid in self._open else self.ends.get(uid, "")
            rows.append((last.pod, last.group, last.node, f"{waited:.1f}", f"{ran:.1f}", end))
        columns = ("pod", "of", "node", "waited, s", "ran, s", "end")
        return Table(columns, rows, empty="no pods were seen")


def group_of(pod: Object) -> str:
    """Return what a pod belongs to: its run, or else its job or app."""
    labels = pod["metadata"].get("labels") or {}
    known = (labels[each] for each in (names.RUN, job_kinds.JOBSET, *OF_OTHERS) if each in labels)
    return next(known, pod["metadata"]["name"])


def short(name: str) -> str:
    """Return a pod's number among its like: the end of its name, if that is one."""
    found = re.search(r"-(\d+)$", name)
    return found[1] if found else ""


def _where(pod: Object) -> tuple[str, str]:
    """Return a pod's state, empty if it has ended, and its node."""
    node = pod["spec"].get("nodeName") or ""
    if pods.finished(pod):
        return "", node
    if pod["metadata"].get("deletionTimestamp"):
        return (LEAVING, node) if node else ("", "")
    if not node:
        return WAITING, ""
    return (RUNNING if pods.phase(pod) == "Running" else STARTING), node


def _since(pod: Object, state: str) -> float:
    created = pod["metadata"]["creationTimestamp"]
    told = created if state != RUNNING else ((pod.get("status") or {}).get("startTime") or created)
    return parse_time(told).timestamp()


def _end(pod: Object) -> str:
    """Return how a pod ended or is about to, or an empty text."""
    disruption = pods.condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return "preempted" if disruption.get("reason") == "PreemptionByScheduler" else "evicted"
    if pods.finished(pod):
        return "done" if pods.phase(pod) == "Succeeded" else "failed"
    return "deleted" if pod["metadata"].get("deletionTimestamp") else ""
