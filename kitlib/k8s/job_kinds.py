"""The objects that run a training's pods: a batch Job or an operator's own kind. How many pods each wants,
and how it says that it has ended. Pure.

Each kind says the same with other words; whoever follows a run asks here, and need not know which one it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kitlib.k8s import names, plain_pods
from kitlib.k8s.manifests import Object

SERVERS = "trainyard/servers"  # on the Job of a master: how many parameter servers it looks after
JOBSET = "jobset.sigs.k8s.io/jobset-name"


@dataclass(frozen=True)
class JobKind:
    """How one kind speaks.

    Attributes:
        name: ``Job``, ``PyTorchJob`` …
        operator: What has to be installed for it, as ``kit.install`` calls it; empty for Kubernetes's own.
        succeeded: Types of conditions that say that it ended well.
        failed: Types of conditions that say that it did not; the telling one first.
        pods: The label of its pods that carries the name of the run.
        role: The role that its pods have by the kit's label, where the run has others beside them.
        maker: Which object makes the pods, and is warned about if it cannot: its kind, and what its name has
            after the run's; by default this one.
        explains: Whether its own words on a failure say more than that one of its pods has failed.
    """

    name: str
    operator: str = ""
    succeeded: tuple[str, ...] = ("Succeeded",)
    failed: tuple[str, ...] = ("Failed",)
    pods: str = names.RUN
    role: str = ""
    maker: tuple[str, str] = ("", "")
    explains: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        JobKind("Job", succeeded=("Complete", "SuccessCriteriaMet"), failed=("Failed", "FailureTarget")),
        JobKind("PyTorchJob", "training-operator", role="worker"),
        # Its pods are those of a JobSet of its name, and get no labels of the TrainJob's.
        JobKind("TrainJob", "trainer", succeeded=("Complete",), pods=JOBSET, maker=("Job", "-node-0")),
        JobKind("ElasticJob", "elastic-job", explains=True),
        # Plain pods, beside a store; it is the store that all of them wait for.
        JobKind(plain_pods.KIND, role="worker", maker=("Pod", "-store")),
    )
}


def kind_of(item: Object) -> JobKind:
    """Return how this object speaks."""
    return KINDS[item.get("kind", "Job")]


def selector(kind: str, run: str) -> str:
    """Return the label selector of the pods of a run that train."""
    how = KINDS[kind]
    return f"{how.pods}={run}" + (f",{names.ROLE}={how.role}" if how.role else "")


def run_of(pod: Object) -> str | None:
    """Return the run in which a pod trains."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(names.ROLE) == "store":
        return None
    return labels.get(names.RUN) or labels.get(JOBSET)


def master(run: str) -> str:
    """Return the name of the Job in which the master of parameter servers is, as ElasticDL calls its pod."""
    return f"elasticdl-{run}-master"


def wanted(item: Object) -> int:
    """Return how many pods it has when complete."""
    if servers := _servers(item):
        return 1 + servers + plain_pods.limits(item)[0]
    if item.get("kind") == plain_pods.KIND:
        return plain_pods.limits(item)[0]
    spec = item["spec"]
    replicas = spec.get("pytorchReplicaSpecs") or spec.get("replicaSpecs")
    if replicas:
        return sum(each.get("replicas", 1) for each in replicas.values())
    if "trainer" in spec:
        return spec["trainer"].get("numNodes") or 1
    return spec.get("completions") or spec.get("parallelism") or 1


def limits(item: Object) -> tuple[int, int, int]:
    """Return how many pods it has when complete, with how few it trains, and how many it may have."""
    if item.get("kind") == plain_pods.KIND:
        return plain_pods.limits(item)
    spec, now = item["spec"], wanted(item)
    if servers := _servers(item):
        return now, 1 + servers + 1, now  # the master, the servers, and one worker
    elastic = spec.get("elasticPolicy") or spec
    masters = ((spec.get("pytorchReplicaSpecs") or {}).get("Master") or {}).get("replicas", 0)
    least, most = (elastic.get(each) for each in ("minReplicas", "maxReplicas"))
    return now, masters + least if least else now, masters + most if most else now


def has_master(item: Object) -> bool:
    """Return whether it is the Job of a master that looks after parameter servers and workers."""
    return _servers(item) > 0


def _servers(item: Object) -> int:
    """Return how many servers a master looks after; none where this is no such master."""
    return int(((item.get("metadata") or {}).get("annotations") or {}).get(SERVERS, 0))


def conditions(item: Object) -> dict[str, Object]:
    """Return the conditions that hold, by their type."""
    every = (item.get("status") or {}).get("conditions") or []
    return {each["type"]: each for each in every if each["status"] == "True"}


def succeeded(item: Object, pods: Iterable[Object] = ()) -> bool:
    """Return whether it has ended well; plain pods say so themselves."""
    if item.get("kind") == plain_pods.KIND:
        return plain_pods.succeeded(pods)
    return any(each in conditions(item) for each in kind_of(item).succeeded)


def ends_by_one(item: Object) -> bool:
    """Return whether it may call itself done while some of its pods still write their last lines."""
    return kind_of(item).name not in ("Job", plain_pods.KIND)


def failure(item: Object, pods: Iterable[Object] = ()) -> str | None:
    """Return its own words on why it failed, or None if it has not."""
    if item.get("kind") == plain_pods.KIND:
        return plain_pods.failure(pods)
    state = conditions(item)
    found = next((state[each] for each in kind_of(item).failed if each in state), None)
    return None if found is None else found.get("message") or found.get("reason") or "it failed"
