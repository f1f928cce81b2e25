"""13: make an object belong to a run by its label. The checks select objects by label at the API server."""

from kitlib.clusters import Cluster
from kitlib.k8s import names
from trainyard_kit.exercises.checklist import Exercise, NotYet

NAME, RUN = "adopted", "forgotten"
EXERCISE = Exercise("cluster")


def labels(cluster: Cluster) -> dict[str, str]:
    """Return the labels of the ConfigMap."""
    config_map = cluster.kube.find("ConfigMap", NAME)
    if config_map is None:
        raise NotYet(f"there is no ConfigMap {NAME!r}: create it with kubectl create configmap")
    return config_map["metadata"].get("labels") or {}


@EXERCISE.check(f"the ConfigMap {NAME} exists and has labels", essential=True)
def has_labels(cluster: Cluster) -> None:
    if not labels(cluster):
        raise NotYet(f"{NAME} has no label yet: kubectl label configmap {NAME} KEY=VALUE sets one")


@EXERCISE.check("it has the notebook's label")
def notebook_label(cluster: Cluster) -> None:
    if labels(cluster).get("trainyard/notebook") != "13":
        raise NotYet(f"kubectl label configmap {NAME} trainyard/notebook=13 lets trainyard reset 13 find it")


@EXERCISE.check(f"it belongs to the run {RUN}")
def belongs_to_run(cluster: Cluster) -> None:
    if (run_label := labels(cluster).get(names.RUN)) != RUN:
        message = f"its label {names.RUN} is {run_label!r}" if run_label else f"it has no label {names.RUN}"
        raise NotYet(f"{message}, and should be {RUN!r}")


@EXERCISE.check("the run's selector matches it, and not the ConfigMap mine")
def matches_selector(cluster: Cluster) -> None:
    selection = {
        config_map["metadata"]["name"]
        for config_map in cluster.kube.get_all("ConfigMap", labels=f"{names.RUN}={RUN}")
    }
    if "mine" in selection:
        raise NotYet(f"mine has the label too: kubectl label configmap mine {names.RUN}- removes it")
    if NAME not in selection:
        raise NotYet(f"the selector {names.RUN}={RUN} does not match it")
