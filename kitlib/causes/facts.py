"""Facts about a run, its namespace and its nodes, in which rules find causes. Pure data.

`collect` reads them from the API. A kind that this user may not read is missing, which is a fact as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kitlib.causes.processes import RankState
from kitlib.display.tables import parse_time
from kitlib.display.tracebacks import Line, time_key
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object

QUEUE, WORKLOAD = "kueue.x-k8s.io/queue-name", "Workload"  # Kueue's label of a job, and its object for it


@dataclass(frozen=True)
class Facts:
    """The facts about a run.

    Attributes:
        run: The run's name.
        main: The object that creates its pods; None if it is deleted, or the run is not on a cluster.
        pods: Its training pods: the newest of each rank, in its current state or its last before deletion.
        objects: Other objects of the namespace and the cluster, by kind; each object has its ``kind``.
        events: Events of the namespace and about nodes, oldest first.
        logs: Lines of each rank, or of each replica of parameter servers.
        init_logs: The last lines of a running init container, by the name of its pod.
        processes: What each rank's process does, for a run that has stopped writing.
        hang_seconds: Seconds since any rank wrote a line; 0 if not measured.
        missing: Kinds that this user may not read, and why.
        now: The current time, by the API server's clock if it is known.
        phase: The run's phase: ``Pending``, ``Running``, ``Succeeded``, ``Failed`` or ``Deleted``.
    """

    run: str = ""
    main: Object | None = None
    pods: Sequence[Object] = ()
    objects: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    events: Sequence[Object] = ()
    logs: Mapping[int | str, Sequence[Line]] = field(default_factory=dict)
    init_logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    processes: Sequence[RankState] = ()
    hang_seconds: float = 0.0
    missing: Mapping[str, str] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    phase: str = ""

    def of(self, kind: str) -> Sequence[Object]:
        """List the objects of a kind, of all runs."""
        return self.objects.get(kind, ())

    def find(self, kind: str, name: str) -> Object | None:
        """Find an object by its kind and name; None if there is none, or it may not be read."""
        return next((item for item in self.of(kind) if item["metadata"]["name"] == name), None)

    def events_of(self, item: Object) -> list[Object]:
        """List the Events about an object, by its uid or else its kind and name; oldest first."""
        kind, name, uid = item.get("kind", "Pod"), item["metadata"]["name"], item["metadata"].get("uid")
        return [
            event
            for event in self.events
            if (about := event["involvedObject"])
            and (
                about["uid"] == uid
                if uid and about.get("uid")
                else (about.get("kind"), about.get("name")) == (kind, name)
            )
        ]

    @property
    def desired(self) -> int:
        """The number of pods of the complete run; without a main object, of those that exist."""
        return len(self.pods) if self.main is None else job_kinds.desired(self.main)

    @property
    def creators(self) -> list[Object]:
        """The objects on whose behalf pods are created: the main one, and those that it owns."""
        own = [] if self.main is None else [self.main]
        owners = {item["metadata"].get("uid") for item in own} - {None}
        below = [
            item
            for kind in ("Job", "JobSet", "ReplicaSet", "StatefulSet", "Deployment")
            for item in self.of(kind)
            if item["metadata"].get("labels", {}).get("jobset.sigs.k8s.io/jobset-name") == self.run
            or any(owner.get("uid") in owners for owner in item["metadata"].get("ownerReferences") or [])
        ]
        return own + [item for item in below if item["metadata"].get("uid") not in owners]

    def lines_of(self, pod: Object) -> Sequence[Line]:
        """List the log lines of a pod of the run."""
        return self.logs.get(pods.replica_id(pod), ())

    def seconds_since(self, time: str | None) -> float:
        """Count the seconds since a time of the API; 0 for none."""
        began = parse_time(time or None)
        return 0.0 if began is None else (self.now - began).total_seconds()


def in_order(events: Iterable[Object]) -> list[Object]:
    """Sort Events by their times, oldest first."""
    return sorted(events, key=lambda event: time_key(event_time(event)))
