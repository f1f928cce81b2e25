"""StorageClasses of a cluster: the kit's manifests, with parameters of the cluster's own."""

from collections.abc import Mapping

from kitlib import config
from kitlib.clusters.base import Cluster
from kitlib.k8s import manifests


def install(cluster: Cluster, item: str, parameters: Mapping[str, str]) -> None:
    """Apply a StorageClass; one with other parameters is replaced, and volumes of it stay."""
    (found,) = manifests.read(config.manifests(cluster.provider, item))
    wanted = manifests.merge(found, {"parameters": dict(parameters)})
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    there = cluster.kube.find(kind, name)
    if there and there.get("parameters") != wanted["parameters"]:
        cluster.kube.delete(kind, name)
    cluster.kube.apply(wanted)
