"""Collect facts from the API, with the rights that this user has.

A kind that may not be read, or that the cluster lacks, is missing from the facts, and never an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from kitlib.causes.facts import QUEUE, WORKLOAD, Facts, in_order
from kitlib.causes.free_resources import ALL_PODS
from kitlib.causes.processes import RankState
from kitlib.display.tracebacks import Line
from kitlib.errors import KitError
from kitlib.k8s import pods
from kitlib.k8s.client import Kube
from kitlib.k8s.events import NODES_NAMESPACE
from kitlib.k8s.logs import last_lines
from kitlib.k8s.manifests import Object

# Kinds of the namespace and the cluster that can keep a pod from running.
KINDS = (
    *("Pod", "Job", "ReplicaSet", "Service", "ServiceAccount", "Node", "PriorityClass", "NetworkPolicy"),
    *("PersistentVolumeClaim", "PersistentVolume", "StorageClass", "ResourceQuota", "LimitRange"),
)


def collect(
    kube: Kube,
    *,
    run: str,
    main: Object | None,
    pods_of_run: Sequence[Object],
    logs: Mapping[int | str, Sequence[Line]],
    phase: str = "",
    processes: Sequence[RankState] = (),
    hang_seconds: float = 0.0,
) -> Facts:
    """Read the facts about a run.

    Args:
        kube: The cluster's API.
        run: The run's name.
        main: The object that creates its pods.
        pods_of_run: Its pods; deleted ones in their last known state.
        logs: The lines of its ranks.
        phase: The run's phase; this and the following arguments are as in `Facts`.
        processes: What each rank's process does.
        hang_seconds: For how long no rank has written a line.
    """
    missing: dict[str, str] = {}
    objects = {kind: _read(kube, kind, missing) for kind in KINDS}
    objects["Namespace"] = _one(kube, "Namespace", kube.namespace, missing)
    if any(QUEUE in (item["metadata"].get("labels") or {}) for item in (main, *pods_of_run) if item):
        objects[WORKLOAD] = _read(kube, WORKLOAD, missing, api_version="kueue.x-k8s.io/v1beta2")
    if any(pods.condition(pod, "PodScheduled").get("status") == "False" for pod in pods_of_run):
        objects[ALL_PODS] = _read(kube.in_namespace(""), "Pod", missing, as_kind=ALL_PODS)
    events = _read(kube, "Event", missing)
    if kube.namespace != NODES_NAMESPACE:
        nodes = kube.in_namespace(NODES_NAMESPACE)
        events += _read(nodes, "Event", missing, as_kind="Event of nodes", fields="involvedObject.kind=Node")
    return Facts(
        run=run,
        main=main,
        pods=tuple(pods_of_run),
        objects=objects,
        events=in_order(events),
        logs=logs,
        init_logs=_init_logs(kube, pods_of_run, missing),
        missing=missing,
        now=datetime.now(UTC),
        phase=phase,
        processes=processes,
        hang_seconds=hang_seconds,
    )


def _init_logs(kube: Kube, run_pods: Iterable[Object], missing: dict[str, str]) -> dict[str, list[str]]:
    """Read the last lines of init containers that run, by the names of their pods."""
    texts = {}
    for pod in run_pods:
        name, running = pod["metadata"]["name"], pods.running_init_container(pod)
        if running and not pods.deleted(pod):
            try:
                texts[name] = last_lines(kube, pod, running["name"])
            except KitError as error:
                missing[f"log of {name}"] = error.what
    return texts


def _read(
    kube: Kube,
    kind: str,
    missing: dict[str, str],
    *,
    as_kind: str = "",
    fields: str = "",
    api_version: str = "",
) -> list[Object]:
    try:
        items = kube.get_all(kind, fields=fields, api_version=api_version)
        return [{"kind": kind, **item} for item in items]
    except KitError as error:
        missing[as_kind or kind] = error.what
        return []


def _one(kube: Kube, kind: str, name: str, missing: dict[str, str]) -> list[Object]:
    try:
        item = kube.find(kind, name)
    except KitError as error:
        missing[kind] = error.what
        return []
    return [] if item is None else [{"kind": kind, **item}]
