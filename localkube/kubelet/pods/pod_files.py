"""The files of pods on the disk: their paths, and their removal after a container or the pod has ended."""

import array
import contextlib
import fcntl
import itertools
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.kubelet.containers.pod_ids import PodIds
from localkube.kubelet.images.image_manager import ImageManager
from localkube.kubelet.logs.container_log import segments
from localkube.kubelet.pods.starts import StartingPods
from localkube.kubelet.status.container_state import containers
from localkube.kubelet.volumes.volume_manager import VolumeManager
from localkube.kubelet.work_pools import WALKS
from localkube.runtime.trees import removal

log = logging.getLogger(__name__)

# What becomes a file's name. The API server has validated it in pods that come from there.
_FILE_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,62}")
MESSAGE_BYTES, FALLBACK_BYTES = 4096, 2048
FALLBACK_LINES = 80
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x20000


def check_file_names(pod: Mapping[str, Any]) -> None:
    """Check the names by which a pod has files: its uid, and the names of its containers and volumes.

    Raises:
        ValueError: One is no DNS label, and could lead elsewhere.
    """
    listed = [container for _, container in containers(pod)] + (pod["spec"].get("volumes") or [])
    for name in (pod["metadata"]["uid"], *(item["name"] for item in listed)):
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of a pod, container or volume")


@dataclass(frozen=True)
class PodFiles:
    """The files of all pods, by their UIDs.

    Attributes:
        pods: Their directory.
        tmpfs: The same in memory, for what comes from the API. No pod may write there: it is all pods'.
        ids: The users and groups that own them.
        starting: The pods that start, for whose sake removals wait.
    """

    pods: Path
    tmpfs: Path
    ids: PodIds
    starting: StartingPods
    volumes: VolumeManager
    images: ImageManager

    def spread(self) -> None:
        """Let ext4 place each pod's files in another part of the disk.

        In one part, it would search for a free inode among all those that were deleted there within the last
        five minutes: after some hundreds of pods, for 2 ms a pod. Other file systems refuse the attribute.

        Source: https://man7.org/linux/man-pages/man2/FS_IOC_SETFLAGS.2const.html
        """
        flags, directory = array.array("L", [0]), os.open(self.pods, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.ioctl(directory, FS_IOC_GETFLAGS, flags)
            flags[0] |= FS_TOPDIR_FL
            fcntl.ioctl(directory, FS_IOC_SETFLAGS, flags)
        os.close(directory)

    def network_files(self, uid: str) -> Path:
        """Name the directory of the pod's hosts, hostname and resolv.conf, which its containers may write."""
        return self.pods / uid / "network"

    async def remove_files(self, uid: str) -> None:
        """Remove all files of a pod; log what cannot be removed."""
        await self.starting.wait_until_idle()
        self.volumes.forget(uid)
        removals = (removal(directory / uid) for directory in (self.pods, self.tmpfs))
        try:
            await WALKS.walk(itertools.chain(self.volumes.unmounting(uid), *removals))
        except OSError as error:
            log.warning("cannot remove the files of pod %s: %s", uid, error)
            return
        self.ids.release(uid)
        self.images.forget(uid)

    async def _remove(self, directory: Path) -> None:
        await WALKS.walk(removal(directory))

    async def remove_written(self, uid: str) -> None:
        """Remove the volumes and writable layers of a pod that has ended, but not its logs."""
        try:
            await self.volumes.remove(uid)
            await self._remove(self.pods / uid / "writable")
        except OSError as error:
            log.warning("cannot remove the files of pod %s: %s", uid, error)

    def log_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "logs" / container / f"{restart}.log"

    def newest_run_logged(self, uid: str, container: str) -> int | None:
        """Find the number of a container's newest run that has a log; None if it has never run."""
        return max(
            (int(path.stem) for path in self.log_path(uid, container, 0).parent.glob("*.log")), default=None
        )

    def writable_layer(self, uid: str, container: str, restart: int) -> Path:
        """Name the directory with what one run of a container writes outside of volumes."""
        return self.pods / uid / "writable" / f"{container}.{restart}"

    async def remove_writable_layer(self, uid: str, container: str, restart: int) -> None:
        """Remove the layer of a run that has ended; what cannot be removed stays until the pod's removal."""
        await self.starting.wait_until_idle()
        try:
            await self._remove(self.writable_layer(uid, container, restart))
        except OSError as error:
            log.warning("cannot remove the files of container %s of pod %s: %s", container, uid, error)

    async def remove_former_runs(self, uid: str, container: str, restart: int) -> None:
        """Remove the files of earlier runs, such as one that ended with its node."""
        for place in ("writable", "termination"):
            for path in (self.pods / uid / place).glob(f"{container}.*"):
                number = int(path.suffix.removeprefix("."))
                if number < restart and place == "writable":
                    await self.remove_writable_layer(uid, container, number)
                elif number < restart:
                    path.unlink(missing_ok=True)

    def termination_path(self, uid: str, container: str, restart: int) -> Path:
        return self.pods / uid / "termination" / f"{container}.{restart}"

    def termination_message(self, uid: str, container: Mapping[str, Any], restart: int, code: int) -> str:
        """Read a container's termination message, or the end of its log if its policy says so."""
        path = self.termination_path(uid, container["name"], restart)
        text = _tail(path, MESSAGE_BYTES)
        fallback = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not text and code and fallback:
            text = _last_output(self.log_path(uid, container["name"], restart))
        return text


def _tail(path: Path, size: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _last_output(path: Path) -> str:
    """Read the last 2048 bytes and 80 lines of a container's output, without the log's own columns."""
    entries = b""
    for name in reversed(segments(path)):
        if len(entries) < 4 * FALLBACK_BYTES:
            with open(name, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * FALLBACK_BYTES))
                entries = file.read() + entries
    fields = [entry.split(b" ", 3) for entry in entries.split(b"\n") if entry.count(b" ") >= 3]
    # Of a line that was written in parts, only the last entry ends it.
    output = b"".join(content + (b"" if tag == b"P" else b"\n") for _, _, tag, content in fields)
    last = b"".join(output.splitlines(keepends=True)[-FALLBACK_LINES:])
    return last[-FALLBACK_BYTES:].decode(errors="replace")
