"""A run's objects in its cluster, and its status from its main object, its pods and the Warnings."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kitlib.causes.cause import CONSEQUENCE
from kitlib.causes.engine import causes
from kitlib.causes.facts import Facts, in_order
from kitlib.causes.rules.reported import reported
from kitlib.causes.rules.scheduling import unschedulable
from kitlib.display.progress import progress
from kitlib.display.tables import Table, age
from kitlib.errors import BadInput, Rejected, RunNotFound
from kitlib.k8s import job_kinds, names, pods
from kitlib.k8s.client import Kube
from kitlib.k8s.events import list_events
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot, WatchSpec, watch_objects

PENDING, RUNNING, SUCCEEDED, FAILED, DELETED = "Pending", "Running", "Succeeded", "Failed", "Deleted"
WARNINGS = "type=Warning"
OF_THE_API = (reported, unschedulable)  # rules that need no more than pods and Events
RIGHTS = ("RoleBinding", "Role", "ServiceAccount")
KINDS = (*job_kinds.KINDS, "Service", "ConfigMap", *RIGHTS)  # of a run's objects, beside its pods


@dataclass(frozen=True)
class RunStatus:
    """The status of a run.

    Attributes:
        phase: Pending, Running, Succeeded, Failed or Deleted. A run is pending until all of its ranks run, an
            elastic one until the fewest that it may have run.
        reason: Its first cause, from pods and Events; empty without a problem. A running run has
            one when the node of a rank does not answer.
        desired: Pods of the complete run.
        running: Pods that run now.
        succeeded: Pods that have succeeded.
        failed: Pods that have failed.
    """

    phase: str
    reason: str = ""
    desired: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def finished(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED, DELETED)

    def __str__(self) -> str:
        reason = f"; {self.reason}" if self.reason else ""
        if self.phase == RUNNING:
            done = f", {self.succeeded} done" if self.succeeded else ""
            return f"Running: {self.running} of {self.desired} pods{done}{reason}"
        if self.phase == SUCCEEDED:
            return f"Succeeded: {self.succeeded} of {self.desired} pods{reason}"
        return f"{self.phase}: {self.reason}" if self.reason else self.phase

    __repr__ = __str__


def run_status(main: Object | None, run_pods: Iterable[Object], warnings: Iterable[Object] = ()) -> RunStatus:
    """Compute a run's status from its main object, if it exists, its pods, and the namespace's Warnings."""
    if main is None:
        return RunStatus(DELETED, "it was deleted, or never launched")
    run_pods = list(run_pods)
    live = [pod for pod in run_pods if not pods.deleted(pod) or pods.finished(pod)]
    phases = [pods.phase(pod) for pod in live]
    desired = job_kinds.desired(main)
    running, succeeded, failed = (phases.count(phase) for phase in ("Running", "Succeeded", "Failed"))
    counts = {"desired": desired, "running": running, "succeeded": succeeded, "failed": failed}
    is_last = job_kinds.kind_of(main).name in ("Job", job_kinds.POD_TEMPLATE)  # then no pod writes any more
    if job_kinds.succeeded(main, live) and (is_last or not running):
        counted = (main.get("status") or {}).get("succeeded") or 0
        return RunStatus(SUCCEEDED, **counts | {"succeeded": max(succeeded, counted)})
    if (message := job_kinds.failure(main, live)) is not None:
        explanation = message if job_kinds.kind_of(main).explains_failure else ""
        reasons = [_cause(main, run_pods, warnings, FAILED), explanation]
        return RunStatus(FAILED, "; ".join(filter(None, reasons)) or message, **counts)
    if "Suspended" in pods.conditions(main):
        return RunStatus(PENDING, "it is suspended", **counts)
    fewest = job_kinds.limits(main)[1]
    if running + succeeded + (failed if fewest == desired else 0) >= fewest:
        reasons = [pods.why(pod) for pod in live if pods.phase(pod) == "Pending"]
        reason = _unreachable(live) or _cause(main, live, warnings, RUNNING)
        return RunStatus(RUNNING, reason or "; ".join(filter(None, dict.fromkeys(reasons))), **counts)
    return RunStatus(PENDING, _pending_reason(main, live, counts, warnings), **counts)


def _unreachable(run_pods: Iterable[Object]) -> str:
    reasons = {pods.replica_id(pod): pods.node_unreachable(pod) for pod in run_pods}
    messages = (
        f"{pods.display_name(replica)}: {reasons[replica]}" for replica in sorted(reasons) if reasons[replica]
    )
    return next(messages, "")


def _pending_reason(
    main: Object, live: list[Object], counts: dict[str, int], warnings: Iterable[Object]
) -> str:
    pending = [pod for pod in live if pods.phase(pod) == "Pending"]
    reasons = [_cause(main, live, warnings, PENDING)]
    if not any(reasons):
        reasons = [reason for reason in dict.fromkeys(map(pods.why, pending)) if reason]
    running, desired = counts["running"], counts["desired"]
    progress_so_far = f"{running} of {desired} pods run" if running else ""
    if not any(reasons):
        waiting = {pods.status_word(pod) for pod in live} - {"Pending", "Running"}
        return progress_so_far or ", ".join(sorted(waiting)) or "its pods are being created"
    return "; ".join(filter(None, [progress_so_far, *reasons]))


def _cause(main: Object, live: list[Object], events: Iterable[Object], phase: str) -> str:
    """Find the first cause that pods and Events alone show; `run.why` reads more.

    Of a failed run that is the end of a rank, if it is all that is known also a lost connection.
    """
    meta = main.get("metadata") or {}
    run = (meta.get("labels") or {}).get(names.RUN) or meta.get("name", "")
    facts = Facts(run=run, main=main, pods=live, events=in_order(events), phase=phase)
    if phase == FAILED:
        return next((cause.line for cause in causes(facts) if cause.certainty or cause.rank is not None), "")
    return next((cause.line for cause in causes(facts, OF_THE_API) if cause.certainty > CONSEQUENCE), "")


class RunObjects:
    """The objects of one run in its cluster, by the run's label: read, watched and deleted.

    It keeps the last state of each pod that it has seen: operators delete pods that have failed.
    """

    def __init__(self, kube: Kube, name: str, kind: str = "") -> None:
        self.kube: Kube = kube
        self.name: str = name
        self._kind = kind
        self._foreign_selector = (
            ""  # the selector of a main object of another client, without the kit's labels
        )
        self._numbers: dict[str, int] | None = None  # by uid: of pods whose Job gives them no index
        self._seen: dict[str, Object] = {}  # by uid: as they ended, or else as they were last

    @property
    def about(self) -> str:
        """The run, for errors."""
        return f'run "{self.name}" in cluster "{self.kube.cluster}"'

    @property
    def label(self) -> str:
        return f"{names.RUN}={self.name}"

    @property
    def kind(self) -> str:
        """The kind of the main object: ``Job``, ``PyTorchJob`` …"""
        if not self._kind:
            main = find_main(self.kube, self.name)
            if main is None:  # not created yet, or deleted: the next call reads it again
                return "Job"
            self._kind = main["kind"]
            self._foreign_selector = job_kinds.foreign_selector(main)
            self._numbers = {} if self._foreign_selector and job_kinds.desired(main) > 1 else None
        return self._kind

    @property
    def selector(self) -> str:
        """The label selector of the pods that train."""
        kind = self.kind
        return self._foreign_selector or job_kinds.selector(kind, self.name)

    def main(self) -> Object:
        """Get the main object; raise RunNotFound if there is none."""
        item = find_main(self.kube, self.name)
        if item is None:
            raise RunNotFound("it was deleted, or never launched", about=self.about, fix="launch it again")
        return item

    def pods(self) -> list[Object]:
        """List the pods that train."""
        listed = self.kube.get_all("Pod", labels=self.selector)
        for pod in listed:
            self._number(pod)
        return listed

    def _number(self, pod: Object) -> None:
        """Give one of several pods without an index the next number, in this copy of it alone."""
        if self._numbers is not None and pods.node_rank(pod) is None:
            number = self._numbers.setdefault(pod["metadata"]["uid"], len(self._numbers))
            pod["metadata"].setdefault("labels", {})[names.WORKER] = str(number)

    def events(self) -> list[Object]:
        """List the Events that the kit has issued for this run; Kubernetes keeps them for an hour."""
        return list_events(self.kube, labels=self.label)

    def status(self) -> RunStatus:
        """Compute the run's current status."""
        return run_status(find_main(self.kube, self.name), self.pods(), warnings(self.kube))

    def table(self) -> Table:
        """Tabulate its pods, with the causes from Events for waiting pods."""
        run_pods = self.pods()
        facts = Facts(run=self.name, pods=run_pods, events=in_order(warnings(self.kube)), phase=PENDING)
        by_rank = {cause.rank: cause.what for cause in reported(facts) if cause.certainty > CONSEQUENCE}
        reasons = {pod["metadata"]["name"]: by_rank.get(pods.replica_id(pod), "") for pod in run_pods}
        return pods.table(run_pods, reasons=reasons)

    def watch(self) -> Iterator[tuple[Snapshot, RunStatus]]:
        """Yield its objects and their status now, and again after each change."""
        specs = (
            WatchSpec(self.kind, fields=f"metadata.name={self._main_name()}"),
            WatchSpec("Pod", labels=self.selector, on_object=self.observe),
            WatchSpec("Event", fields=WARNINGS, optional=True),
        )
        for snapshot in watch_objects(self.kube, *specs):
            item = next(iter(snapshot[self.kind].values()), None)
            main = item and {"kind": self.kind, **item}  # the members of a list do not have their kind
            yield snapshot, run_status(main, snapshot["Pod"].values(), snapshot.get("Event", {}).values())

    def _main_name(self) -> str:
        """The main object's name: the run's, but for the master of parameter servers."""
        jobs = list_known(self.kube, self.kind, labels=self.label) if self.kind == "Job" else []
        return jobs[0]["metadata"]["name"] if jobs else self.name

    def observe(self, pod: Object) -> None:
        """Keep the state of a pod; of one that has ended, the first such state."""
        self._number(pod)
        uid = pod["metadata"]["uid"]
        if uid not in self._seen or not pods.finished(self._seen[uid]):
            self._seen[uid] = pod

    def newest(self, existing: Collection[Object], *, started: bool = False) -> list[Object]:
        """Find the newest pod of each rank: of those that exist, or a deleted one as it was last seen.

        Args:
            existing: The pods that exist.
            started: Prefer one that has started: an operator replaces a failed pod before it gives up, and
                how the rank ended is in the pod that failed.
        """
        for pod in existing:
            self.observe(pod)

        def age(pod: Object) -> tuple[bool, str]:
            return not started or pods.phase(pod) != "Pending", pod["metadata"]["creationTimestamp"]

        return list({pods.replica_id(pod): pod for pod in sorted(self._seen.values(), key=age)}.values())

    def owned(self) -> list[Object]:
        """List all objects with the run's label, its pods and its Events."""
        pods_of_run = f"{job_kinds.KINDS[self.kind].pods}={self.name}"
        listed = [
            {"kind": kind, **item}
            for kind in KINDS
            for item in list_known(self.kube, kind, labels=self.label)
        ]
        for labels in (self.label, pods_of_run):
            listed += [{"kind": "Pod", **item} for item in self.kube.get_all("Pod", labels=labels)]
        listed += [{"kind": "Event", **event} for event in self.events()]
        return list({item["metadata"]["uid"]: item for item in listed}.values())

    def delete(self, *, only: Collection[Object] | None = None) -> None:
        """Delete all objects with the run's label, and its pods, and wait until the pods are deleted.

        Args:
            only: Objects of one launch, as `owned` lists them: what another launch of this name has created
                stays. Their pods, which a controller may still create, are deleted as well.

        Raises:
            BadInput: Another client has created it.
        """
        kind = job_kinds.KINDS[self.kind]  # read before the main object is deleted
        if self._foreign_selector:
            what = "the kit has not launched it, and deletes only what has its labels"
            raise BadInput(what, about=self.about, fix=f"kubectl delete {kind.name.lower()} {self.name}")
        pods_of_run = f"{kind.pods}={self.name}"
        objects = self.owned() if only is None else only
        uids = {item["metadata"]["uid"] for item in objects}
        uids |= {owner for item in objects if item["kind"] == "Pod" for owner in _owners(item)}

        def belongs_to_launch(item: Object) -> bool:
            return only is None or not uids.isdisjoint({item["metadata"]["uid"], *_owners(item)})

        for item in sorted(objects, key=lambda item: item["kind"] in ("Pod", "Event")):
            if item["kind"] != "Pod":
                self.kube.delete(item["kind"], item["metadata"]["name"], uid=item["metadata"]["uid"])
        # Plain pods have no owner; and the garbage collector learns late of the owners of newly defined
        # kinds. Where another object owns the pods, their end shows that it was deleted as well.
        selectors = {self.label, pods_of_run} if kind.pod_creator == ("", "") else {self.label}
        for pod in (pod for labels in selectors for pod in self.kube.get_all("Pod", labels=labels)):
            if belongs_to_launch(pod):
                self.kube.delete("Pod", pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        specs = [WatchSpec("Pod", labels=pods_of_run)]
        if (
            kind.pod_creator[0] == "Job"
        ):  # until it is gone, a new object of the name would take it for its own
            specs.append(WatchSpec("Job", fields=f"metadata.name={self.name}{kind.pod_creator[1]}"))
        listed = [self.kube.get_all(spec.kind, labels=spec.labels, fields=spec.fields) for spec in specs]
        if any(belongs_to_launch(item) for items in listed for item in items):
            with progress(f"run {self.name}") as line:
                wait(
                    watch_objects(self.kube, *specs),
                    until=lambda snapshot: (
                        not any(belongs_to_launch(pod) for part in snapshot.values() for pod in part.values())
                    ),
                    what="the pods to end",
                    about=self.about,
                    resume="`run.delete()` again",
                    describe=lambda snapshot: _deleting(filter(belongs_to_launch, snapshot["Pod"].values())),
                    report=line.update,
                )
                line.done("deleted")
        # Last: an operator that has not seen the deletion yet recreates them for pods that it misses.
        for service in self.kube.get_all("Service", labels=f"{names.OPERATORS_JOB_NAME}={self.name}"):
            if belongs_to_launch(service):
                self.kube.delete("Service", service["metadata"]["name"], uid=service["metadata"]["uid"])


def _owners(item: Object) -> set[str]:
    return {owner["uid"] for owner in item["metadata"].get("ownerReferences") or []}


def _deleting(run_pods: Iterable[Object]) -> str:
    remaining = list(run_pods)
    reasons = {reason for pod in remaining if (reason := pods.node_unreachable(pod))}
    return "; ".join([f"deleting it, {len(remaining)} pods remain", *sorted(reasons)])


def find_main(kube: Kube, run: str) -> Object | None:
    """Find the object that makes the pods of a run."""
    for kind in job_kinds.JOBS:
        if items := list_known(kube, kind.name, fields=f"metadata.name={kind.main.format(run=run)}"):
            return {"kind": kind.name, **items[0]}  # the members of a list do not have their kind
    return None


def list_known(kube: Kube, kind: str, **selectors: str) -> list[Object]:
    """List objects; none of a kind that the cluster lacks, or that this user may not list."""
    try:
        return kube.get_all(kind, **selectors)
    except Rejected as error:
        optional = kind in RIGHTS or (kind in job_kinds.KINDS and kind != "Job")
        if optional and error.status in (403, 404):
            return []
        raise


def warnings(kube: Kube) -> list[Object]:
    return list_events(kube, fields=WARNINGS)


def runs_table(kube: Kube) -> Table:
    """List the kit's runs in a cluster, newest last."""
    mains = [
        {"kind": kind, **item}
        for kind in job_kinds.KINDS
        for item in list_known(kube, kind, labels=names.RUN)
    ]
    by_run: dict[str | None, list[Object]] = {}
    for pod in kube.get_all("Pod"):
        by_run.setdefault(job_kinds.run_of(pod), []).append(pod)
    rows, events = [], warnings(kube) if mains else []
    for main in sorted(mains, key=lambda main: main["metadata"]["creationTimestamp"]):
        meta, labels = main["metadata"], main["metadata"]["labels"]
        name = labels[names.RUN]
        status = run_status(main, by_run.get(name, []), events)
        owner, since = labels.get(names.OWNER), age(meta["creationTimestamp"])
        rows.append((name, status.phase, status.desired, owner, since, status.reason))
    width = 6 if any(row[-1] for row in rows) else 5  # without "why" where all is well
    columns = ("run", "status", "pods", "owner", "age", "why")
    return Table(columns[:width], [row[:width] for row in rows], empty="no runs")
