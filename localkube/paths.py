"""Where things lie on disk: the XDG directories, and the directory of one cluster.

Directories are 0700 and files 0600, because certificates are among them.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from localkube.errors import LocalClusterError

APPLICATION = "trainyard"


def cache_dir() -> Path:
    """Return the directory of things that can be obtained again (binaries)."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Return the directory of things that cannot: one folder a cluster."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def private_dir(path: Path) -> Path:
    """Create ``path`` and its parents, readable by this user alone.

    Raises:
        LocalClusterError: The disk is full or read-only, or the directory belongs to somebody else.
    """
    try:
        for missing in [place for place in (*reversed(path.parents), path) if not place.exists()]:
            missing.mkdir(mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file of mode 0600, whole or not at all.

    Raises:
        OSError: The disk is full or read-only.
    """
    aside = path.with_name(f".{path.name}.new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content.encode() if isinstance(content, str) else content)
    aside.rename(path)


def unwritable(path: Path, error: OSError) -> LocalClusterError:
    """Return the error to raise when ``path`` could not be written."""
    return LocalClusterError(
        f"cannot write: {error.strerror}",
        about=str(path),
        fix="free space there, or point XDG_STATE_HOME and XDG_CACHE_HOME at a directory that you can write",
    )


def _xdg(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    root = Path(base) if base and os.path.isabs(base) else Path.home() / default
    return root / APPLICATION


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
    def record(self) -> Path:
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    @property
    def tmpfs(self) -> Path:
        """Where the site has a file system in memory; on the host the directory stays empty."""
        return self.root / "tmpfs"

    @property
    def volumes(self) -> Path:
        return self.root / "volumes"

    @property
    def socket(self) -> Path:
        return self.root / "runtime.sock"

    @property
    def control(self) -> Path:
        """The agent's socket for the cluster's owner."""
        return self.root / "agent.sock"

    @property
    def deaths(self) -> Path:
        """How often each component has ended as soon as it was started."""
        return self.root / "deaths.json"

    @property
    def node_states(self) -> Path:
        """Which nodes are switched off or cut off."""
        return self.root / "node-states.json"

    @property
    def simulated(self) -> Path:
        """How many simulated nodes there are."""
        return self.root / "simulated.json"
