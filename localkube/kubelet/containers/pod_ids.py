"""The uids and gids of pods on the host: each pod has a range of its own.

Root in a container is the first id of its pod's range, so that it owns no files of the host or of other pods.
A kubelet does the same for pods with ``hostUsers: false``. The cluster of a user who is not root has one id,
that user's.

Source: https://kubernetes.io/docs/concepts/workloads/pods/user-namespaces/
"""

import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from localkube.host import IdRanges
from localkube.runtime.client import RuntimeCallError
from localkube.runtime.container_spec import LinuxIdMapping


class PodIds:
    """The range of each pod, kept in a file for a kubelet that restarts.

    Args:
        pods: The directory that has one folder for each pod, by uid.
    """

    def __init__(self, ranges: IdRanges = IdRanges(), *, pods: Path = Path("/nonexistent")) -> None:  # noqa: B008
        self._ranges, self._pods = ranges, pods
        self._indices = dict(self._recorded(pods.glob("*/ids"))) if ranges.count > 1 else {}

    @property
    def idmap(self) -> bool:
        return self._ranges.idmap

    @property
    def size(self) -> int:
        return self._ranges.size

    @property
    def many(self) -> bool:
        return self.size > 1

    def of(self, uid: str) -> LinuxIdMapping:
        """Return the pod's range, a free one the first time."""
        ranges = self._ranges
        index = self._indices.get(uid) if ranges.count > 1 else 0
        if index is None:
            index = self._indices[uid] = self._free()
            file = self._pods / uid / "ids"
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(str(index))
        return LinuxIdMapping(0, ranges.first + index * ranges.size, ranges.size)

    def shared_with_node(self, pod: Mapping[str, Any]) -> list[str]:
        """List the namespaces that a pod shares with its node: ``net``, ``ipc``, ``pid``.

        Processes are shared only where the pod's user cannot kill the cluster's own.
        """
        fields = {"net": "hostNetwork", "ipc": "hostIPC", "pid": "hostPID"}
        shared = [name for name, field in fields.items() if pod["spec"].get(field)]
        return [name for name in shared if name != "pid" or self.of(pod["metadata"]["uid"]).size > 1]

    def chown_to_pod(self, file: Path | int, uid: str) -> None:
        """Make a file or directory belong to the root user of a pod's containers."""
        if owner := self.of(uid).host_id:
            os.chown(file, owner, owner)

    def release(self, uid: str) -> None:
        self._indices.pop(uid, None)

    def _free(self) -> int:
        """Choose a free range at random: other clusters on this machine are likely to have others."""
        in_use = set(self._indices.values())
        if len(in_use) >= self._ranges.count:
            raise RuntimeCallError("sandbox", f"all {self._ranges.count} ranges of user ids are in use")
        while (index := random.randrange(self._ranges.count)) in in_use:
            pass
        return index

    def _recorded(self, files: Iterable[Path]) -> Iterable[tuple[str, int]]:
        for file in files:
            text = file.read_text()
            if text.isdigit() and int(text) < self._ranges.count:
                yield file.parent.name, int(text)
