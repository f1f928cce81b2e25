"""An etcd data directory with the objects that the API server writes into every new cluster.

Roles, namespaces, priority classes and the controllers' accounts are the same in each cluster, and writing
them takes half of a cluster's start. They are written once for a control plane, by running it for a few
seconds on loopback, and copied into new clusters. The directory has no secrets: tokens are not stored, and
the authorities that the API server published are deleted. It is a cache: delete it at any time.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from localkube.api_path import api_path
from localkube.controlplane import certificates, client_credentials
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.controlplane.components import ETCD_SOCKET, ComponentCommand, ListenAddresses, commands
from localkube.controlplane.lock import Report, cache_lock
from localkube.controlplane.progress_deadline import Activity, ProgressDeadline
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths, cache_dir, private_dir, unwritable, writing
from localkube.runtime.syscalls import die_with_parent, reserve

EXPECTED_SECONDS = 7
STOP_SECONDS = 20
POLL_SECONDS = 0.1
BLOCK = 1 << 16
DATABASE_BYTES = 32 << 20
# What each cluster must publish for itself: its own authorities.
OWN_TO_EACH = "/registry/configmaps/kube-system/extension-apiserver-authentication"
WITHOUT_CONTROLLERS = (
    "root-ca-certificate-publisher-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
)
ADMIN = api_path("rbac.authorization.k8s.io/v1/clusterroles", name="admin")
NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def obtain(control_plane: ControlPlaneBinaries, *, report: Report, create: bool = True) -> Path | None:
    """The snapshot to `restore` into new clusters, made first if need be; None on failure.

    A cluster starts without one two seconds later.
    """
    folder = cache_dir() / "controlplane" / f"etcd-snapshot-{_fingerprint(control_plane)}"
    if folder.is_dir():
        return folder
    if not create:
        return None
    try:
        # Not the lock of the programs: they are there, and another build may take minutes.
        with cache_lock(report, making="what new clusters contain"):
            if not folder.is_dir():
                report(f"Preparing what every new cluster contains, once: some {EXPECTED_SECONDS} s")
                _create(control_plane, folder)
    except (LocalClusterError, OSError, subprocess.SubprocessError) as error:
        report(f"New clusters will start two seconds later: preparing failed: {error}")
        return None
    return folder


def restore(snapshot: Path, etcd: Path) -> None:
    """Copy a snapshot to ``etcd``, the data directory of a cluster that was never started."""
    for path in _copy(snapshot, etcd):
        _reserve(path)


def _copy(snapshot: Path, etcd: Path) -> list[Path]:
    """Copy a directory sparsely; return the files."""
    copies = []
    for source in (snapshot, *sorted(snapshot.rglob("*"))):
        target = etcd / source.relative_to(snapshot)
        if source.is_dir():
            private_dir(target)
        else:
            _copy_sparse(source, target)
            copies.append(target)
    return copies


def _reserve(path: Path) -> None:
    """Reserve the disk space that etcd will need: it ends at once when a write finds the disk full."""
    with writing(path), path.open("r+b") as file:
        reserve(file.fileno(), max(path.stat().st_size, DATABASE_BYTES if path.name == "db" else 0))


def _fingerprint(control_plane: ControlPlaneBinaries) -> str:
    digest = hashlib.sha256(control_plane.version.encode())
    for name in ("etcd", "kube-apiserver", "kube-controller-manager"):
        command = control_plane.programs[name]
        status = Path(command[0]).stat()
        digest.update(json.dumps([command, status.st_size, status.st_mtime_ns]).encode())
    for module in (Path(__file__), Path(__file__).with_name("components.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class _Scratch(ClusterPaths):
    """A cluster's files in a temporary directory."""

    directory: Path = Path()

    @property
    def root(self) -> Path:
        return self.directory


def _create(control_plane: ControlPlaneBinaries, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".etcd-snapshot-", dir=folder.parent) as name:
        paths = _Scratch("etcd-snapshot", Path(name))
        addresses = ListenAddresses(api_bind="127.0.0.1", api_port=_free_port())
        certificates.issue(paths.pki, node_addresses=[])
        private_dir(paths.logs)
        parts = {part.name: part for part in commands(paths, control_plane, addresses=addresses)}
        manager = _without(parts["kube-controller-manager"])
        with _running(parts["etcd"], paths) as etcd:
            api_server = _ApiServer(paths, addresses)
            with _running(parts["kube-apiserver"], paths) as server:
                running = {"etcd": etcd, "kube-apiserver": server}
                # The controller manager ends where it has to wait for that for more than ten seconds.
                api_server.wait("readiness", lambda: api_server.status("/readyz") == 200, running)
                with _running(manager, paths) as controllers:
                    running |= {manager.name: controllers}
                    api_server.wait("accounts and roles", api_server.is_complete, running)
            # Imported where it is used: what it imports would take a tenth of each later start.
            from localkube.controlplane.etcd_maintenance import delete_key

            delete_key(paths.root / ETCD_SOCKET, OWN_TO_EACH)
        # Copied, so that what is kept has holes where etcd only reserved room.
        _copy(paths.etcd, paths.root / "kept")
        for stale in folder.parent.glob("etcd-snapshot-*"):
            shutil.rmtree(stale, ignore_errors=True)
        (paths.root / "kept").rename(folder)


def _without(manager: ComponentCommand) -> ComponentCommand:
    words = []
    for word in manager.argv:
        flag, _, _ = word.partition("=")
        if flag == "--controllers":
            word = ",".join((word, *(f"-{name}" for name in WITHOUT_CONTROLLERS)))
        words.append(word)
    return replace(manager, argv=tuple(words))


@contextlib.contextmanager
def _running(component: ComponentCommand, paths: ClusterPaths) -> Iterator[subprocess.Popen[bytes]]:
    with (paths.logs / component.name).open("wb") as log:
        process = subprocess.Popen(
            component.argv,
            cwd=paths.root,
            env={**os.environ, **component.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        finally:
            process.kill()
            process.wait()


class _ApiServer:
    """An administrator's connection to the API server."""

    def __init__(self, paths: ClusterPaths, addresses: ListenAddresses) -> None:
        self._logs, self._url = paths.logs, addresses.api
        self._tls = client_credentials.client_tls(paths.pki)

    def status(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(self._url + path, context=self._tls, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def wait(
        self, what: str, arrived: Callable[[], bool], running: Mapping[str, subprocess.Popen[bytes]]
    ) -> None:
        """Wait for as long as the components make progress."""
        deadline, activity = ProgressDeadline(never_idle=["etcd", "kube-apiserver"]), Activity()
        while not arrived():
            ended = [f"{part} has ended" for part, process in running.items() if process.poll() is not None]
            interval, cpu_seconds = activity.sample(
                {part: [process.pid] for part, process in running.items()}
            )
            stall = deadline.check(what, interval, cpu_seconds)
            if reason := ended[0] if ended else stall and stall.reason:
                raise LocalClusterError(
                    f"the API server gave no {what}: {reason}",
                    about=self._url,
                    fix="nothing needs to be done; the next cluster tries again",
                )
            time.sleep(POLL_SECONDS)

    def is_complete(self) -> bool:
        accounts = [api_path("v1/serviceaccounts", namespace=name, name="default") for name in NAMESPACES]
        if any(self.status(path) != 200 for path in accounts):
            return False
        # The controller manager gathers the rules of `admin` from other roles.
        with urllib.request.urlopen(self._url + ADMIN, context=self._tls, timeout=5) as answer:
            return bool(json.load(answer).get("rules"))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy a file without its holes: etcd preallocates 64 MB for a log of half a megabyte."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with source.open("rb", buffering=0) as read, os.fdopen(descriptor, "wb") as write:
            size = os.fstat(read.fileno()).st_size
            for start, end in _data(read.fileno(), size):
                while start < end:
                    # Not by a buffered read: the search for holes moves the descriptor under its buffer.
                    block = os.pread(read.fileno(), min(BLOCK, end - start), start)
                    if not block:
                        raise OSError(errno.EIO, "it became shorter while it was copied", str(source))
                    # What was reserved and never written is data to some file systems.
                    if block.count(0) < len(block):
                        write.seek(start)
                        write.write(block)
                    start += len(block)
            write.truncate(size)
    except OSError as error:
        raise unwritable(target, error) from error


def _data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes to the end
                return
            raise
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end
