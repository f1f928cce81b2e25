"""The objects that make a run's pods: a Job, an operator's kind, or a PodTemplate of plain pods.

For each kind: how many pods it wants, the label of its pods, and the conditions that tell its end. No
controller looks after plain pods: their PodTemplate, which Kubernetes only stores, is what every scale-up
creates pods from.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object

POD_TEMPLATE = "PodTemplate"
REPLICAS, MIN_REPLICAS, MAX_REPLICAS = (
    "trainyard/replicas",
    "trainyard/min-replicas",
    "trainyard/max-replicas",
)
SERVERS = "trainyard/servers"  # on the Job of a master: its number of parameter servers
JOBSET = "jobset.sigs.k8s.io/jobset-name"


@dataclass(frozen=True)
class JobKind:
    """One kind of main object.

    Attributes:
        name: ``Job``, ``PyTorchJob`` …
        operator: What ``kit.install`` installs for it; empty for Kubernetes's own.
        succeeded: Types of the conditions of success.
        failed: Types of the conditions of failure; the one with the reason first.
        pods: The label of its pods whose value is the run's name.
        role: The role label of its pods, where the run has others beside them.
        creator: The object that creates the pods, about which Kubernetes warns: its kind, and the suffix of
            its name after the run's; by default the main object.
        explains: Whether its own message on a failure says more than the failed pod's.
    """

    name: str
    operator: str = ""
    succeeded: tuple[str, ...] = ("Succeeded",)
    failed: tuple[str, ...] = ("Failed",)
    pods: str = names.RUN
    role: str = ""
    creator: tuple[str, str] = ("", "")
    explains: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        JobKind("Job", succeeded=("Complete", "SuccessCriteriaMet"), failed=("Failed", "FailureTarget")),
        JobKind("PyTorchJob", "training-operator", role="worker"),
        # Its pods are those of a JobSet of its name; of other clients, without the kit's labels.
        JobKind("TrainJob", "trainer", succeeded=("Complete",), pods=JOBSET, creator=("Job", "-node-0")),
        JobKind("ElasticJob", "elastic-job", explains=True),
        JobKind(POD_TEMPLATE, role="worker", creator=("Pod", "-store")),  # the workers wait for the store
    )
}


def kind_of(item: Object) -> JobKind:
    return KINDS[item.get("kind", "Job")]


def selector(kind: str, run: str) -> str:
    """Build the label selector of the pods of a run that train."""
    how = KINDS[kind]
    return f"{how.pods}={run}" + (f",{names.ROLE}={how.role}" if how.role else "")


def foreign_selector(main: Object) -> str:
    """Build the label selector of the pods of a main object that another client has created, else ''."""
    if names.RUN in (main["metadata"].get("labels") or {}):
        return ""
    label = JOBSET if main["kind"] == "TrainJob" else names.OPERATORS_JOB_NAME
    own = (main.get("spec") or {}).get("selector") or {}
    labels = own.get("matchLabels") or {label: main["metadata"]["name"]}
    return ",".join(f"{key}={value}" for key, value in labels.items())


def run_of(pod: Object) -> str | None:
    """Find the run in which a pod trains, by its labels."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(names.ROLE) == "store":
        return None
    return labels.get(names.RUN) or labels.get(JOBSET)


def servers(item: Object) -> int:
    """Count the parameter servers of a master; 0 where the object is no master."""
    return int(((item.get("metadata") or {}).get("annotations") or {}).get(SERVERS, 0))


def replica_limits(item: Object) -> tuple[int, int, int]:
    """Read the wanted, fewest and most workers from the annotations of plain pods or of a master."""
    notes = item["metadata"].get("annotations") or {}
    replicas = int(notes.get(REPLICAS, 1))
    return replicas, int(notes.get(MIN_REPLICAS, replicas)), int(notes.get(MAX_REPLICAS, replicas))


def wanted(item: Object) -> int:
    """Count the pods of a complete run."""
    if count := servers(item):
        return 1 + count + replica_limits(item)[0]
    if item.get("kind") == POD_TEMPLATE:
        return replica_limits(item)[0]
    spec = item["spec"]
    replicas = spec.get("pytorchReplicaSpecs") or spec.get("replicaSpecs")
    if replicas:
        return sum(replica.get("replicas", 1) for replica in replicas.values())
    if "trainer" in spec:
        return spec["trainer"].get("numNodes") or 1
    return spec.get("completions") or spec.get("parallelism") or 1


def limits(item: Object) -> tuple[int, int, int]:
    """Read the pods of a complete run, the fewest with which it trains, and the most that it may have."""
    if item.get("kind") == POD_TEMPLATE:
        return replica_limits(item)
    spec, now = item["spec"], wanted(item)
    if count := servers(item):
        return now, 1 + count + 1, now  # the master, the servers, and one worker
    elastic = spec.get("elasticPolicy") or spec
    masters = ((spec.get("pytorchReplicaSpecs") or {}).get("Master") or {}).get("replicas", 0)
    least, most = (elastic.get(field) for field in ("minReplicas", "maxReplicas"))
    return now, masters + least if least else now, masters + most if most else now


def conditions(item: Object) -> dict[str, Object]:
    """Index the conditions that are true by their type."""
    listed = (item.get("status") or {}).get("conditions") or []
    return {condition["type"]: condition for condition in listed if condition["status"] == "True"}


def succeeded(item: Object, workers: Iterable[Object] = ()) -> bool:
    """Test for success; of plain pods by the pods: none trains any more, and one came to the end."""
    if item.get("kind") == POD_TEMPLATE:
        workers = list(workers)
        return not any(map(active, workers)) and any(pods.phase(worker) == "Succeeded" for worker in workers)
    return any(condition in conditions(item) for condition in kind_of(item).succeeded)


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
    state = conditions(item)
    condition_met = next((state[condition] for condition in kind_of(item).failed if condition in state), None)
    if condition_met is None:
        return None
    return condition_met.get("message") or condition_met.get("reason") or "it failed"


def active(pod: Object) -> bool:
    """Tell whether a plain pod trains, or will: not finished, deleted, or on an unreachable node."""
    return not (pods.finished(pod) or pods.deleted(pod) or pods.node_unreachable(pod))


def worker_pod(template: Object, number: int) -> Object:
    """Make the pod of a worker from the run's PodTemplate."""
    run, pattern = template["metadata"], copy.deepcopy(template["template"])
    labels = (pattern["metadata"].get("labels") or {}) | {names.WORKER: str(number)}
    name = f"{run['name']}-{number}"
    meta = pattern["metadata"] | {"name": name, "labels": labels}
    meta.pop("creationTimestamp", None)  # the API server writes it as null
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pattern["spec"] | {"hostname": name}}
