"""The objects that make a run's pods: a Job, an operator's kind, or a PodTemplate of plain pods.

Each kind of job is described in ``manifests/KIND/kind.toml``, beside the YAML that its class patches: how
many pods it has, the label of its pods, the conditions of its end, what attendees may have of it. No
controller looks after plain pods: their PodTemplate, which Kubernetes only stores, is what every scale-up
creates pods from.
"""

import copy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from kitlib import config
from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object

POD_TEMPLATE = "PodTemplate"
REPLICAS, MIN_REPLICAS, MAX_REPLICAS = (
    "trainyard/replicas",
    "trainyard/min-replicas",
    "trainyard/max-replicas",
)
SERVERS = "trainyard/servers"  # on the Job of a master: its number of parameter servers


@dataclass(frozen=True)
class JobKind:
    """One kind of job, as its ``manifests/KIND/kind.toml`` describes it.

    Attributes:
        command: Its name for ``trainyard launch --kind``: the folder's.
        name: The kind of its main object: ``Job``, ``PyTorchJob`` …
        api_version: Of the main object.
        job: The class that builds it, as an entry point: ``module:Class``.
        main: The main object's name, of the run's.
        nodes: The argument of the class that is the number of pods.
        operator: What ``kit.install`` installs for it; empty for Kubernetes's own.
        succeeded: Types of the conditions of success.
        failed: Types of the conditions of failure; the one with the reason first.
        pods: The label of its pods whose value is the run's name.
        foreign_label: The same label where another client than the kit has created the main object.
        role: The role label of its pods, where the run has others beside them.
        pod_creator: The object that creates the pods, about which Kubernetes warns: its kind, and the suffix
            of its name after the run's; by default the main object.
        explains_failure: Whether its own message on a failure says more than the failed pod's.
        replicas: Where its spec has the number of pods; of several the first that exists. A ``*`` sums up.
        limits: Where its spec has minReplicas and maxReplicas; by default beside all else.
        fixed_replicas: Where its spec has the number of pods that these limits do not count.
        suspend: Where its spec says that it creates no pods.
        quota: What an attendee of a workshop may have of it and what belongs to it: a count by resource and
            group. The attendee's role follows from the groups.
    """

    command: str
    name: str
    api_version: str
    job: str
    main: str = "{run}"
    nodes: str = "nodes"
    operator: str = ""
    succeeded: Sequence[str] = ("Succeeded",)
    failed: Sequence[str] = ("Failed",)
    pods: str = names.RUN
    foreign_label: str = names.OPERATORS_JOB_NAME
    role: str = ""
    pod_creator: Sequence[str] = ("", "")
    explains_failure: bool = False
    replicas: Sequence[str] = ()
    limits: str = ""
    fixed_replicas: str = ""
    suspend: str = "suspend"
    quota: Mapping[str, int] = field(default_factory=dict)

    @property
    def entry(self) -> EntryPoint:
        """The class, to be loaded."""
        return EntryPoint(self.job.partition(":")[2], self.job, "kitlib.jobs")


def read_kinds(folder: Path) -> list[JobKind]:
    """Read the kinds of jobs that a folder of manifests has; Kubernetes's own Job is the first."""
    files = {path.parent.name: tomllib.loads(path.read_text("utf-8")) for path in folder.glob("*/kind.toml")}
    jobs = (JobKind(command, **fields) for command, fields in files.items())
    return sorted(jobs, key=lambda kind: (kind.name != "Job", kind.command))


JOBS = read_kinds(config.manifests())
KINDS: dict[str, JobKind] = {}  # of the main objects: two kinds of jobs are a Job, and are judged alike
for _kind in JOBS:
    KINDS.setdefault(_kind.name, _kind)


def kind_of(item: Object) -> JobKind:
    return KINDS[item.get("kind", "Job")]


def selector(kind: str, run: str) -> str:
    """Build the label selector of the pods of a run that train."""
    job_kind = KINDS[kind]
    return f"{job_kind.pods}={run}" + (f",{names.ROLE}={job_kind.role}" if job_kind.role else "")


def foreign_selector(main: Object) -> str:
    """Build the label selector of the pods of a main object that another client has created, else ''."""
    if names.RUN in (main["metadata"].get("labels") or {}):
        return ""
    own = (main.get("spec") or {}).get("selector") or {}
    labels = own.get("matchLabels") or {KINDS[main["kind"]].foreign_label: main["metadata"]["name"]}
    return ",".join(f"{key}={value}" for key, value in labels.items())


def run_of(pod: Object) -> str | None:
    """Find the run in which a pod trains, by its labels."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(names.ROLE) == "store":
        return None
    return next((labels[label] for kind in KINDS.values() if labels.get(label := kind.pods)), None)


def servers(item: Object) -> int:
    """Count the parameter servers of a master; 0 where the object is no master."""
    return int(((item.get("metadata") or {}).get("annotations") or {}).get(SERVERS, 0))


def replica_limits(item: Object) -> tuple[int, int, int]:
    """Read the desired, fewest and most workers from the annotations of plain pods or of a master."""
    notes = item["metadata"].get("annotations") or {}
    replicas = int(notes.get(REPLICAS, 1))
    return replicas, int(notes.get(MIN_REPLICAS, replicas)), int(notes.get(MAX_REPLICAS, replicas))


def desired(item: Object) -> int:
    """Count the pods of a complete run."""
    if count := servers(item):
        return 1 + count + replica_limits(item)[0]
    if item.get("kind") == POD_TEMPLATE:
        return replica_limits(item)[0]
    counts = (_read(item["spec"], path) for path in kind_of(item).replicas)
    return next(filter(None, counts), 1)


def _read(spec: Object, path: str) -> int:
    """Read a number by its path; 0 where there is none. Replicas that a spec leaves out are 1."""
    key, _, rest = path.partition(".")
    if key == "*":
        return sum(_read({rest: 1} | part, rest) for part in spec.values())
    part: Any = spec.get(key)
    return _read(part or {}, rest) if rest else part or 0


def fixed_replicas(item: Object) -> int:
    """Count the pods that the limits of an elastic run do not count."""
    return _read(item["spec"], kind_of(item).fixed_replicas)


def limits(item: Object) -> tuple[int, int, int]:
    """Read the pods of a complete run, the fewest with which it trains, and the most that it may have."""
    if item.get("kind") == POD_TEMPLATE:
        return replica_limits(item)
    spec, now = item["spec"], desired(item)
    if count := servers(item):
        return now, 1 + count + 1, now  # the master, the servers, and one worker
    elastic, fixed = spec.get(kind_of(item).limits) or spec, fixed_replicas(item)
    least, most = (elastic.get(field) for field in ("minReplicas", "maxReplicas"))
    return now, fixed + least if least else now, fixed + most if most else now


def succeeded(item: Object, workers: Iterable[Object] = ()) -> bool:
    """Test for success; of plain pods by the pods: none trains any more, and one came to the end."""
    if item.get("kind") == POD_TEMPLATE:
        workers = list(workers)
        return not any(map(active, workers)) and any(pods.phase(worker) == "Succeeded" for worker in workers)
    return any(condition in pods.conditions(item) for condition in kind_of(item).succeeded)


def failure(item: Object, workers: Iterable[Object] = ()) -> str | None:
    """Read its message of failure; None while it has not failed.

    Plain pods: a lost worker does not fail the run while others train. One on an unreachable node may still
    be training: while no other pod has failed, the run continues.
    """
    if item.get("kind") == POD_TEMPLATE:
        workers = list(workers)
        unreachable = any(pods.node_unreachable(worker) for worker in workers if not pods.finished(worker))
        failed = any(pods.phase(worker) == "Failed" for worker in workers)
        if any(map(active, workers)) or succeeded(item, workers) or (unreachable and not failed):
            return None
        return "every worker has failed" if failed else "its workers were deleted"
    state = pods.conditions(item)
    condition_met = next((state[condition] for condition in kind_of(item).failed if condition in state), None)
    if condition_met is None:
        return None
    return condition_met.get("message") or condition_met.get("reason") or "it failed"


def active(pod: Object) -> bool:
    """Check whether a plain pod trains, or will: not finished, deleted, or on an unreachable node."""
    return not (pods.finished(pod) or pods.deleted(pod) or pods.node_unreachable(pod))


def worker_pod(template: Object, number: int) -> Object:
    """Make the pod of a worker from the run's PodTemplate."""
    run, pattern = template["metadata"], copy.deepcopy(template["template"])
    labels = (pattern["metadata"].get("labels") or {}) | {names.WORKER: str(number)}
    name = f"{run['name']}-{number}"
    meta = pattern["metadata"] | {"name": name, "labels": labels}
    meta.pop("creationTimestamp", None)  # the API server writes it as null
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pattern["spec"] | {"hostname": name}}
