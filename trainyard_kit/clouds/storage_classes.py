"""StorageClasses of a cluster: the kit's manifests, with parameters of the cluster's own."""

from collections.abc import Mapping

from kitlib import config
from kitlib.clusters.base import Cluster
from kitlib.k8s import manifests


def install(cluster: Cluster, item: str, parameters: Mapping[str, str]) -> None:
    """Apply a StorageClass; one with other parameters is replaced, and volumes of it stay."""
    (template,) = manifests.read(config.manifests(cluster.provider, item))
    storage_class = manifests.merge(template, {"parameters": dict(parameters)})
    kind, name = storage_class["kind"], storage_class["metadata"]["name"]
    existing = cluster.kube.find(kind, name)
    if existing and existing.get("parameters") != storage_class["parameters"]:
        cluster.kube.delete(kind, name)
    cluster.kube.apply(storage_class)
