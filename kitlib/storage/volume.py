"""A volume for users: files are copied to and from it through the Kubernetes API alone.

The claim is in `pvc`, the tar streams are in `copy`.
"""

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kitlib.display.progress import progress
from kitlib.display.signatures import checked_class
from kitlib.display.tables import Table
from kitlib.errors import BadInput, KitError
from kitlib.k8s.manifests import Object
from kitlib.storage import copy, pvc
from kitlib.storage.copy import inside, listing, target
from kitlib.storage.helper_pod import HelperPod, PodHost


@checked_class
class Volume:
    """A shared volume, and its files.

    Args:
        cluster: The `kitlib.Cluster` that it belongs to.
        name: Its claim's name, by which pods mount it.

    Example:
        >>> volume = cluster.create_volume("shared", size="5Gi")
        >>> volume.upload("pictures", to="pets")
        >>> volume.ls("pets")
    """

    def __init__(self, cluster: PodHost, name: str) -> None:
        self.cluster: Any = cluster
        self.name: str = name

    # Files

    def ls(self, path: str = "") -> Table:
        """List a folder of the volume.

        Raises:
            FileMissing: There is no such folder.
        """
        place = inside(path)
        with HelperPod(self.cluster, self.name) as helper:
            return listing(copy.entries(helper, place), empty="an empty folder")

    def upload(
        self,
        path: str | Path,
        to: str = "",
        *,
        replace: bool = False,
        more: Mapping[str, bytes] = MappingProxyType({}),
    ) -> str:
        """Copy a file or a folder to the volume, and return its path there.

        It appears complete or not at all. A file replaces a file of its name. Links to what is in the folder
        stay links, others are followed; one that leads nowhere is left out, and named.

        Args:
            path: Of the file or folder on this machine.
            to: Its path on the volume; with a slash at the end, the folder to put it in.
            replace: Replace a folder that is there.
            more: Files to add to the folder: name -> content.

        Raises:
            BadInput: There is no such file, ``to`` leads elsewhere, or a folder of that name is there.
            VolumeFull: It does not fit.
            TransferFailed: The connection was lost.
        """
        source = _here(path)
        place = target(source.name, to)
        with progress(f"volume {self.name}") as line, HelperPod(self.cluster, self.name) as helper:
            try:
                done = copy.send(helper, source, place, replace=replace, more=more, line=line)
            except OSError as error:
                raise _local(error, source) from error
            line.done(f"copied {source.name} to {place}: {done}")
        return place

    def download(self, path: str, to: str | Path = ".") -> Path:
        """Copy a file or a folder of the volume to this machine, and return its path here.

        Links that lead out of the folder are left out, and named.

        Args:
            path: Of the file or folder on the volume.
            to: An existing folder, in which it keeps its name; or its new path.

        Raises:
            FileMissing: There is no such file on the volume.
            BadInput: ``to`` cannot be written, or is a folder with one of that name in it.
            TransferFailed: The connection was lost.
        """
        place = inside(path)
        folder = Path(to).expanduser()
        local_path = (folder / Path(place or self.name).name if folder.is_dir() else folder).absolute()
        if local_path.is_dir():
            raise BadInput("a folder of that name exists", about=str(local_path), fix="give another `to=`")
        with progress(f"volume {self.name}") as line, HelperPod(self.cluster, self.name) as helper:
            try:
                done = copy.fetch(helper, place, local_path, line=line)
            except OSError as error:
                raise _local(error, local_path) from error
            line.done(f"fetched {place or 'the whole volume'}: {done}")
        return local_path

    def read(self, path: str) -> bytes:
        """Read a small file of the volume.

        Raises:
            FileMissing: There is no such file.
        """
        with HelperPod(self.cluster, self.name) as helper:
            return copy.content(helper, inside(path))

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with its content; idempotent.

        Raises:
            BadInput: The path is the volume itself: `delete` does that.
        """
        place = inside(path)
        if not place:
            raise BadInput("this is the whole volume", about=f"path={path!r}", fix="`volume.delete()`")
        with HelperPod(self.cluster, self.name) as helper:
            copy.remove(helper, place)

    # The volume

    def delete(self) -> None:
        """Delete the claim, and the volume that its StorageClass provisioned; idempotent.

        Raises:
            VolumeInUse: Pods use it; the error names them.
        """
        with progress(f"volume {self.name}") as line:
            pvc.delete(self.cluster.kube, self.name, report=line.update)
            line.done("deleted")

    @property
    def source(self) -> Object:
        """The source of its PersistentVolume: ``{"nfs": {…}}``, ``{"csi": {…}}`` …

        Raises:
            Rejected: This user may not see volumes, as attendees may not.
        """
        return pvc.source(self.cluster.kube, self.name)

    def __repr__(self) -> str:
        return f'Volume "{self.name}" in cluster "{self.cluster.name}": {self._summary()}'

    def _repr_html_(self) -> str:
        return f"<b>Volume</b> <code>{escape(self.name)}</code>: {escape(self._summary())}"

    def _summary(self) -> str:
        try:
            claim = self.cluster.kube.find(pvc.CLAIM, self.name)
        except KitError as error:  # showing an object never fails
            return error.what
        if claim is None:
            return "it was deleted"
        return ", ".join(str(part) for part in pvc.row(claim)[1:4] if part)


def _here(path: str | Path) -> Path:
    source = Path(os.path.normpath(Path(path).expanduser().absolute()))
    if not (source.is_file() or source.is_dir()) or not source.name:
        raise BadInput("there is no such file or folder here", about=str(source), fix="give one that exists")
    return source


def _local(error: OSError, path: Path) -> BadInput:
    return BadInput(
        f"this machine's files cannot be used: {error.strerror or error}",
        about=str(error.filename or path),
        fix="give a path that you can read, or write, with enough space",
    )
