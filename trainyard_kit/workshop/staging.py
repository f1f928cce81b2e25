"""Datasets of a workshop: prepared once on the instructor's volume, and shared read-only with all attendees.

Each attendee's namespace gets a read-only PersistentVolumeClaim to the same volume. The claim's annotations
list the datasets, so that `prepare_dataset` finds them without starting a pod.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kitlib.clusters import Cluster
from kitlib.datasets import dataset
from kitlib.datasets.dataset import SHARED, SHARED_NOTE
from kitlib.errors import VolumeNotFound
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.storage import persistent_volume

SIZE = "10Gi"


@dataclass(frozen=True)
class Staged:
    """Datasets that all attendees may read: the volume's source and size, and their descriptions by name."""

    source: Object
    size: str
    found: Mapping[str, Mapping[str, Any]]

    @property
    def said(self) -> str:
        """Their names, in words."""
        drawn = ", ".join(name for name, about in self.found.items() if about["synthetic"])
        return ", ".join(self.found) + (f" (stand-ins: {drawn})" if drawn else "")

    def share(self, kube: Kube, *, labels: Mapping[str, str]) -> None:
        """Create the read-only claim in a namespace."""
        notes = {SHARED_NOTE: json.dumps(self.found)}
        persistent_volume.share(kube, SHARED, source=self.source, size=self.size, labels=labels, notes=notes)


def stage(cluster: Cluster, wanted: Mapping[str, Mapping[str, Any]]) -> Staged:
    """Prepare datasets on the shared volume; those that are there already are kept."""
    volume = cluster.create_volume(SHARED, size=SIZE)
    persistent_volume.read_only(
        volume.source
    )  # raises if the volume cannot be shared, before anything is fetched
    for name, options in wanted.items():
        dataset.prepare_dataset(name, volume=volume, **options)
    said = {name: dataset.description_of(volume, name) for name in wanted}
    before = _noted(cluster.kube)
    note = {"metadata": {"annotations": {SHARED_NOTE: json.dumps({**before, **said})}}}
    cluster.kube.patch("PersistentVolumeClaim", SHARED, note)
    found = staged(cluster)
    assert found is not None  # the annotation was just written
    return found


def staged(cluster: Cluster) -> Staged | None:
    """Find the datasets that were staged in a cluster, or None."""
    found = _noted(cluster.kube)
    if not found:
        return None
    volume = cluster.volume(SHARED)
    size = cluster.kube.get("PersistentVolumeClaim", SHARED)["spec"]["resources"]["requests"]["storage"]
    return Staged(volume.source, size, found)


def delete(cluster: Cluster) -> None:
    """Delete the staged datasets; idempotent."""
    if not _noted(cluster.kube):
        return
    try:
        cluster.volume(SHARED).delete()
    except VolumeNotFound:
        return


def _noted(kube: Kube) -> dict[str, Mapping[str, Any]]:
    claim = kube.find("PersistentVolumeClaim", SHARED)
    if claim is None:
        return {}
    return json.loads((claim["metadata"].get("annotations") or {}).get(SHARED_NOTE, "{}"))
