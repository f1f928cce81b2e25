"""Directories and files: the XDG directories, and those of one cluster.

Directories are 0700 and files 0600, because certificates are among them.
"""

import contextlib
import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.errors import LocalClusterError, Skipped

APPLICATION = "trainyard"
MIN_FREE_BYTES = 200 << 20  # etcd writes logs of 64 MB, and allocates one ahead
# The Python packages of built programs that ``make wheel`` makes (``tools/wheel.py``).
PACKAGE, OPERATORS_PACKAGE = "trainyard_kit_controlplane", "trainyard_kit_operators"
CONTENTS = "contents.json"
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def cache_dir() -> Path:
    """Find the directory of files that can be obtained again."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Find the directory of clusters."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def images_dir() -> Path:
    """Find the store of pulled images, one for all clusters."""
    return state_dir() / "images"


def private_dir(path: Path) -> Path:
    """Create ``path`` and its parents, for this user alone."""
    with writing(path):
        for missing in [place for place in (*reversed(path.parents), path) if not place.exists()]:
            missing.mkdir(mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
    return path


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file of mode 0600 atomically."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a file; empty if the file is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def private_opener(path: str, flags: int) -> int:
    """Open a file for this user alone; for the ``opener`` of ``open``."""
    return os.open(path, flags, 0o600)


def unwritable(path: Path, error: OSError) -> LocalClusterError:
    """Create the error for a ``path`` that cannot be written."""
    return no_room(path, full_disk(path) or f"cannot write: {error.strerror or error}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise an OSError of this block as the error for a ``path`` that cannot be written."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def existing(place: Path) -> Path:
    """Find the nearest folder above a path that exists."""
    while not os.path.exists(place):  # also False where it may not be examined
        place = place.parent
    return place


def full_disk(place: Path) -> str:
    """Describe why a cluster has no room on the disk of a path; empty if it has."""
    total, _, free = shutil.disk_usage(existing(place))
    if not total or free >= MIN_FREE_BYTES:  # /proc has no size
        return ""
    return f"the disk is full: {free / 2**20:.3g} MiB free, and a cluster needs {MIN_FREE_BYTES >> 20} MiB"


def no_room(path: Path, what: str) -> LocalClusterError:
    """Create the error for a ``path`` whose disk is full or not writable."""
    return LocalClusterError(
        what,
        about=str(path),
        fix="free space there, or point XDG_STATE_HOME and XDG_CACHE_HOME at a directory that you can write",
    )


def target() -> tuple[str, str]:
    """Name this machine's operating system and architecture as Go does."""
    machine = platform.machine().lower()
    return platform.system().lower(), _ARCHITECTURES.get(machine, machine)


def packaged_program(program: str, fingerprint: str, *, package: str = PACKAGE) -> Path:
    """Find a program in a Python package of ours, as ``trainyard-kit-controlplane``.

    Args:
        program: Its file's name.
        fingerprint: The fingerprint of its sources, so that only tested versions run together.
        package: Its import name.

    Raises:
        Skipped: The package is not installed, or has another program than this.
    """
    spec, title = importlib.util.find_spec(package), package.replace("_", "-")
    if spec is None or not spec.origin:
        raise Skipped(f"the Python package {title} is not installed")
    folder = Path(spec.origin).parent / "binaries"
    try:
        contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Skipped(f"{folder / CONTENTS} cannot be read: {error}") from error
    if program not in contents:
        raise Skipped(f"the package {title} has no {program}")
    if contents[program] != fingerprint:
        raise Skipped(
            f"{program} of the package {title} was built from other sources "
            f"({contents[program]}) than these ({fingerprint}): install the wheel of this version"
        )
    if not os.access(folder / program, os.X_OK):
        raise Skipped(f"{folder / program} cannot be executed")
    return folder / program


def _xdg(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    if base and os.path.isabs(base):
        return Path(base) / APPLICATION
    try:
        return Path.home() / default / APPLICATION
    except RuntimeError as error:
        what, about = "neither HOME nor /etc/passwd names a home folder", f"user {os.getuid()}"
        fix = "export HOME=FOLDER, one that you may write to"
        raise LocalClusterError(what, about=about, fix=fix) from error


def _below(name: str) -> "property":
    """A file or directory of a cluster."""
    return property(lambda paths: paths.root / name)


@dataclass(frozen=True)
class ClusterPaths:
    """The files of the cluster ``name``.

    Example:
        >>> ClusterPaths("lab").kubeconfig.name
        'kubeconfig'
    """

    name: str

    @property
    def root(self) -> Path:
        return state_dir() / "clusters" / self.name

    @property
    def attendees(self) -> Path:
        """The kubeconfigs of a workshop's attendees, which the kit writes."""
        return state_dir() / "attendees" / self.name

    record = _below("cluster.json")
    kubeconfig = _below("kubeconfig")
    pki = _below("pki")
    etcd = _below("etcd")
    known_roles = _below("known-roles")  # the roles of this build, with which etcd starts
    logs = _below("logs")
    pods = _below("pods")
    # The mount point of the runtime's tmpfs; on the host it stays empty.
    tmpfs = _below("tmpfs")
    volumes = _below("volumes")
    socket = _below("runtime.sock")
    # The kubelet's control socket.
    control = _below("kubelet.sock")
    # How often each component has crashed at its start.
    crashes = _below("crashes.json")
    # The nodes that are stopped or isolated.
    node_states = _below("node-states.json")
    # It is there while the cluster sleeps (``controlplane/sleep.py``).
    asleep = _below("asleep")
