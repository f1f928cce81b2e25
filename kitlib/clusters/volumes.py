"""The volumes of a cluster: asked for, found, listed. What a volume can do is in `kitlib.storage`."""

from collections.abc import Mapping

from kitlib.display.tables import Table
from kitlib.errors import VolumeNotFound
from kitlib.k8s.client import Kube
from kitlib.storage import Volume, pvc


class Volumes:
    """The part of a cluster that has to do with storage."""

    kube: Kube

    def create_volume(
        self,
        name: str,
        *,
        size: str = "5Gi",
        storage_class: str | None = None,
        source: Mapping | None = None,
    ) -> Volume:
        """Return a volume to which pods on all nodes can write; made if there is none of this name.

        Args:
            name: By which pods mount it.
            size: At least so much.
            storage_class: Who makes it; by default that of the settings, or else the cluster's.
            source: Where it is, if it exists already: ``{"nfs": {"server": "10.0.0.2", "path": "/share"}}``.

        Raises:
            BadInput: There is no such class, or the volume is there and smaller.
            WaitTimeout: Nobody made it; the error has what was said last.

        Example:
            >>> cluster.create_volume("shared", size="5Gi")
        """
        pvc.create(self.kube, name, size=size, storage_class=storage_class, source=source)
        return Volume(self, name)

    def volume(self, name: str) -> Volume:
        """Return a volume that is there.

        Raises:
            VolumeNotFound: There is none of this name.
        """
        if self.kube.find(pvc.CLAIM, name) is None:
            known = ", ".join(str(each["volume"]) for each in self.volumes()) or "none"
            raise VolumeNotFound(
                "there is no such volume",
                about=pvc.about(self.kube, name),
                fix=f'take one of those that there are: {known}; or cluster.create_volume("{name}")',
            )
        return Volume(self, name)

    def volumes(self) -> Table:
        """Return the volumes of its namespace."""
        return pvc.table(self.kube)
