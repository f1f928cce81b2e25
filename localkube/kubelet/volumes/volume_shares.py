"""The space for ConfigMaps, Secrets and tokens of pods, reserved by namespace before they are written.

One object can be in many volumes of many pods, so an attendee's quota does not bound their size. Secrets and
tokens are in memory, all others on the disk of the nodes. The space is released when a pod has terminated.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.quantity import quantity
from localkube.kubelet.volumes.projected import VolumeFile

MEMORY, DISK = "memory", "disk"
MEBIBYTE = 1 << 20
# The memory of all (``runtime/namespaces.py``), and the most of a disk; a namespace has an eighth of each.
LIMITS = {MEMORY: 512 * MEBIBYTE, DISK: 8192 * MEBIBYTE}
NAMESPACES = 8
WORDS = {MEMORY: "Secrets and tokens", DISK: "ConfigMaps and downward API files"}
PAGE = 4096


def size_of(files: Mapping[str, VolumeFile]) -> int:
    """Compute the space of files: whole pages, one more each for metadata, and directories."""
    return sum((-(-len(file.content) // PAGE) + 1 + path.count("/")) * PAGE for path, file in files.items())


@dataclass
class VolumeShares:
    """Counts the bytes of volumes by namespace.

    Attributes:
        room: Bytes for all namespaces, in memory and on the disk.
    """

    room: Mapping[str, int] = field(default_factory=lambda: dict(LIMITS))
    _held: dict[tuple[str, str], tuple[str, str, int]] = field(default_factory=dict)

    @classmethod
    def of_places(cls, *, memory: Path, disk: Path) -> "VolumeShares":
        """Divide the file systems of two directories: all of the memory, and an eighth of the disk."""
        whole = {MEMORY: os.statvfs(memory), DISK: os.statvfs(disk)}
        sizes = {name: status.f_blocks * status.f_frsize for name, status in whole.items()}
        return cls({MEMORY: min(LIMITS[MEMORY], sizes[MEMORY]), DISK: min(LIMITS[DISK], sizes[DISK] // 8)})

    def of_namespace(self, medium: str) -> int:
        return self.room[medium] // NAMESPACES

    def reserve(self, uid: str, volumes: Mapping[str, tuple[str, int]], *, namespace: str) -> None:
        """Reserve space for volumes of a pod, by name with medium and size, in place of earlier reservations.

        A namespace that begins to rewrite its largest volume needs it twice, so an eighth of all stays free.

        Raises:
            ConfigError: They do not fit; nothing has changed. A later attempt succeeds once pods have ended.
        """
        retained = {key: entry for key, entry in self._held.items() if key[0] != uid or key[1] not in volumes}
        for medium in (MEMORY, DISK):
            requested = sum(size for kind, size in volumes.values() if kind == medium)
            used = sum(
                size for space, kind, size in retained.values() if (space, kind) == (namespace, medium)
            )
            total = sum(size for _, kind, size in retained.values() if kind == medium)
            free = self.room[medium] - self.of_namespace(medium) - total
            if requested and (used + requested > self.of_namespace(medium) or requested > free):
                raise ConfigError(
                    self._message(medium, namespace, requested=requested, used=used, total=total)
                )
        self._held = retained | {
            (uid, name): (namespace, medium, size) for name, (medium, size) in volumes.items()
        }

    def _message(self, medium: str, namespace: str, *, requested: int, used: int, total: int) -> str:
        text = f"no space left on device: {WORDS[medium]} of this pod "
        text += f"need {mebibytes(requested)} of {medium}; "
        if used + requested > self.of_namespace(medium):
            share = mebibytes(self.of_namespace(medium))
            return f"{text}those of namespace {namespace} have {mebibytes(used)} and may have {share}"
        return f"{text}those of all namespaces have {mebibytes(total)} of {mebibytes(self.room[medium])}"

    def forget(self, uid: str) -> None:
        """Release a pod's space."""
        self._held = {key: entry for key, entry in self._held.items() if key[0] != uid}

    def of_pod(self, uid: str) -> int:
        return sum(size for key, (_, _, size) in self._held.items() if key[0] == uid)

    def used(self, medium: str) -> dict[str, int]:
        """Sum the bytes by namespace."""
        totals: dict[str, int] = {}
        for namespace, kind, size in self._held.values():
            if kind == medium:
                totals[namespace] = totals.get(namespace, 0) + size
        return totals


def mebibytes(size: int) -> str:
    return quantity(-(-size // MEBIBYTE) * MEBIBYTE, binary=True)
