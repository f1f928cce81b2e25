"""11: a PriorityClass between two others. A dry run; nothing is created."""

from kitlib.clusters import Cluster
from kitlib.errors import KitError
from kitlib.k8s.manifests import Object
from trainyard_kit.exercises.checklist import Exercise, NotYet, describe
from trainyard_kit.exercises.manifests import add_manifest_checks

STUB = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "between"},
    "value": 0,
}
EXERCISE = Exercise("priority_class", "cluster", stub=STUB)
add_manifest_checks(EXERCISE, kind="PriorityClass", version="scheduling.k8s.io/v1")


@EXERCISE.check("its pods come before those of low and after those of high")
def value_between(priority_class: Object, cluster: Cluster) -> None:
    try:
        low, high = (cluster.kube.get("PriorityClass", name)["value"] for name in ("low", "high"))
    except KitError as error:
        raise NotYet(
            "the cluster has no PriorityClasses low and high: run the cell that applies them"
        ) from error
    value = priority_class.get("value", 0)
    if value in (low, high):
        name = "low" if value == low else "high"
        raise NotYet(f"value is {value}, the same as for {name}, and should be between {low} and {high}")
    if not low < value < high:
        raise NotYet(f"value is {describe(value)}, and should be between {low} and {high}")


@EXERCISE.check("its pods wait and do not preempt others")
def never_preempts(priority_class: Object, cluster: Cluster) -> None:
    if priority_class.get("preemptionPolicy") != "Never":
        raise NotYet(
            "its pods preempt others by default: which preemptionPolicy lets them wait in the queue?"
        )


@EXERCISE.check("it is not the default for pods without a class")
def not_default(priority_class: Object, cluster: Cluster) -> None:
    if priority_class.get("globalDefault"):
        raise NotYet("with globalDefault every pod of the cluster without a class gets it: leave it out")
