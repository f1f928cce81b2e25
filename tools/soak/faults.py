"""Faults of the cluster: killed components, nodes off or isolated, a full disk, short certificates."""

import contextlib
import errno
import os
from datetime import timedelta
from pathlib import Path

import psutil

import kitlib as kit
from kitlib.errors import KitError
from localkube.controlplane import certificates, renewal
from localkube.controlplane.certificates import LEAF_DAYS
from localkube.errors import LocalClusterError
from soak import resources
from soak.plan import UNDO

BRING_BACK = {"stop": "start", "isolate": "reconnect"}
SHORT = timedelta(minutes=15)
CHUNK = 16 * 2**20


class Faults:
    """Applies the disturbances of the plan's lanes, except the attendees'.

    Args:
        cluster: The cluster.
        root: Its directory.
        disk: The directory of the file system that is filled; None to fill none.
    """

    def __init__(self, cluster: kit.Cluster, root: Path, *, disk: Path | None) -> None:
        self.cluster, self.root = cluster, root
        self._ballast = disk / "ballast" if disk else None
        self._offline_node = ""  # the node that is stopped or isolated
        self.nodes = sorted(node["node"] for node in cluster.nodes())

    def apply(self, lane: str, what: str, pick: float) -> str:
        """Apply one fault; return its target."""
        match lane, what:
            case (("components" | "kubelet"), name):
                return self._kill(name)
            case "nodes", ("stop" | "isolate"):
                self._offline_node = self.nodes[int(pick * len(self.nodes))]
                self.cluster._switch(what, self._offline_node)
                return self._offline_node
            case "nodes", _:
                self.cluster._switch(BRING_BACK[what.removeprefix(UNDO)], self._offline_node)
                return self._offline_node
            case "certificates", "shorten":
                return self._shorten()
            case "certificates", _:
                self._renew()
                return "renewed"
            case "disk", "fill":
                return self._fill()
            case "disk", _:
                assert self._ballast, "the plan only fills the soak test's own disk"
                self._ballast.unlink(missing_ok=True)
                return "free"
        raise ValueError(f"{lane}: {what}")

    def undo_all(self) -> None:
        """Start all nodes and free the disk, even if undoing a fault has failed."""
        if self._ballast:
            self._ballast.unlink(missing_ok=True)
        self._renew()
        for node in self.nodes:
            for verb in BRING_BACK.values():
                with contextlib.suppress(KitError):
                    self.cluster._switch(verb, node)

    def _kill(self, name: str) -> str:
        victims = resources.component(self.root, name)
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return (
            f"process {', '.join(str(process.pid) for process in victims)}"
            if victims
            else "it is not running"
        )

    def _shorten(self) -> str:
        """Reissue all certificates with a validity of minutes, so that they are renewed and expire."""
        defaults = certificates.LEAF_DAYS, certificates.RENEW_DAYS
        certificates.LEAF_DAYS, certificates.RENEW_DAYS = SHORT / timedelta(days=1), LEAF_DAYS + 1
        try:
            self._renew()
        finally:
            certificates.LEAF_DAYS, certificates.RENEW_DAYS = defaults
        return f"for {SHORT}"

    def _renew(self) -> None:
        try:
            renewal.renew(self.root)
        except (LocalClusterError, OSError) as error:  # a full disk
            raise KitError(str(error), about=str(self.root), fix="free it") from error

    def _fill(self) -> str:
        assert self._ballast, "the plan only fills the soak test's own disk"
        size = 0
        with self._ballast.open("wb", buffering=0) as file:
            chunk = CHUNK
            while chunk >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), size, chunk)
                    size += chunk
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk //= 2
        return f"{size >> 20} MiB"
