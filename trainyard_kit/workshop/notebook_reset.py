"""Reset of a notebook: delete the objects that its metadata lists under ``trainyard.makes``.

An object that several notebooks create belongs to the first of them, so resetting a later one keeps it.
Objects created with kubectl are deleted only if their label names the notebook; clusters are never deleted.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from kitlib import config
from kitlib.clusters import Cluster, connect
from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.errors import BadInput, ClusterNotFound, VolumeNotFound
from kitlib.k8s import names
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects
from kitlib.operators.catalog import OPERATORS
from kitlib.operators.install import OPERATOR, uninstall
from kitlib.runs.run import Run
from kitlib.runs.status import find_main

# Kinds that notebooks create with kubectl, by the prefix of "pod/hello", in the order of deletion.
BY_KUBECTL = {
    "horizontalpodautoscaler": "HorizontalPodAutoscaler",
    "deployment": "Deployment",
    "job": "Job",
    "pod": "Pod",
    "service": "Service",
    "configmap": "ConfigMap",
    "secret": "Secret",
    "persistentvolumeclaim": "PersistentVolumeClaim",
    "storageclass": "StorageClass",
    "resourceclaimtemplate": "ResourceClaimTemplate",
}
ORDER = (*BY_KUBECTL, "run", "dataset", "volume", "operator")
COURSE_VOLUME = "shared"  # has the notebooks' datasets
DELETED, ABSENT = "deleted", "did not exist"


def reset(notebook: str = "", *, cluster: Cluster | str = config.DEFAULT_CLUSTER) -> Table:
    """Delete the objects that a notebook, or all notebooks, created in a cluster; idempotent.

    Args:
        notebook: Its number, ``"05"``, or name; by default all.
        cluster: The cluster, or its name.

    Returns:
        A row for each object: notebook, object, result.

    Raises:
        BadInput: There is no such notebook.

    Example:
        >>> reset("05")
    """
    created_by = dict(_created_objects())
    chosen = _choose(notebook, created_by)
    try:
        connected = connect(cluster) if isinstance(cluster, str) else cluster
    except ClusterNotFound:  # nothing to delete
        connected = None
    rows = []
    with progress("reset") as line:
        for number, item, owner in plan(created_by, chosen):
            line.update(item)
            if owner != number:
                result = f"kept: it belongs to notebook {owner}"
            else:
                result = _delete(connected, number, item) if connected else ABSENT
            rows.append((number, item, result))
        line.done(f"deleted: {sum(result == DELETED for *_, result in rows)}")
    return Table(("notebook", "object", "result"), sorted(rows), empty="it creates no objects")


def plan(created_by: Mapping[str, Sequence[str]], chosen: Collection[str]) -> list[tuple[str, str, str]]:
    """List notebook, object and owning notebook for a reset, in the order of deletion. Pure."""
    owners: dict[str, str] = {}
    for number in sorted(created_by):
        for item in created_by[number]:
            owners.setdefault(item, number)
    steps = [
        (number, item, owners[item])
        for number in sorted(chosen)
        for item in created_by[number]
        if owners[item] == number or owners[item] not in chosen
    ]
    return sorted(steps, key=lambda row: ORDER.index(row[1].partition("/")[0]))


def _created_objects() -> Iterator[tuple[str, list[str]]]:
    """Yield each notebook's number and the objects that it creates."""
    for path in sorted((config.DATA / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]
        yield path.stem[:2], list((metadata.get("trainyard") or {}).get("makes") or [])


def _choose(notebook: str, created_by: dict[str, list[str]]) -> list[str]:
    if not notebook:
        return sorted(created_by)
    number = re.split(r"\D", Path(notebook).name)[0].zfill(2)
    if number not in created_by:
        fix = f"one of {', '.join(sorted(created_by))}"
        raise BadInput("there is no such notebook", about=f"reset {notebook}", fix=fix)
    return [number]


def _delete(cluster: Cluster, number: str, item: str) -> str:
    """Delete one object and wait until it is gone; return the result for the table."""
    kind, _, name = item.partition("/")
    if kind == "run":
        if find_main(cluster.kube, name) is None:
            return ABSENT
        Run(cluster.kube, name).delete()
        return DELETED
    if kind in ("volume", "dataset"):
        return _delete_storage(cluster, kind, name)
    if kind == "operator":
        return _delete_operator(cluster, name)
    existing = cluster.kube.find(BY_KUBECTL[kind], name)
    if existing is None:
        return ABSENT
    if _labels(existing).get(names.NOTEBOOK) != number:
        return f"kept: it has no label {names.NOTEBOOK}={number}"
    cluster.kube.delete(BY_KUBECTL[kind], name)
    _wait_gone(cluster, BY_KUBECTL[kind], name)
    return DELETED


def _delete_storage(cluster: Cluster, kind: str, name: str) -> str:
    """Delete a volume, or a dataset's folder on the course's volume."""
    try:
        volume = cluster.volume(name if kind == "volume" else COURSE_VOLUME)
    except VolumeNotFound:
        return ABSENT
    if kind == "volume":
        volume.delete()
        return DELETED
    if name not in {entry["name"] for entry in volume.ls()}:
        return ABSENT
    volume.remove(name)
    return DELETED


def _delete_operator(cluster: Cluster, name: str) -> str:
    workloads = (part.workload for part in OPERATORS[name])
    found = [
        cluster.kube.in_namespace(namespace).find(kind, workload) for kind, namespace, workload in workloads
    ]
    existing = [controller for controller in found if controller and OPERATOR in _labels(controller)]
    uninstall(name, cluster=cluster)
    return DELETED if existing else ABSENT


def _labels(item: Object) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def _wait_gone(cluster: Cluster, kind: str, name: str) -> None:
    wait(
        watch_objects(cluster.kube, WatchSpec(kind, fields=f"metadata.name={name}")),
        until=lambda snapshot: not snapshot[kind],
        what="it to be deleted",
        about=f'{kind} "{name}" in cluster "{cluster.name}"',
        resume="run trainyard reset again",
    )
