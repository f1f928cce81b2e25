"""Disk usage of the local cluster: the cache and the clusters, and what can be removed.

The cache keeps programs and etcd snapshots of every version. ``clear`` removes what neither a cluster nor
this version uses; clusters are removed only by ``removal.delete``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localkube.cluster import discovery
from localkube.controlplane import binaries, etcd_snapshot, lock
from localkube.controlplane.recipes import RECIPES
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths, cache_dir, writing
from localkube.runtime import preload
from localkube.runtime.trees import disk_usage, remove_tree

ON_REQUEST = "unknown"
THIS_VERSION = "this version"
VERSIONED = ("controlplane", "preload", "programs")


@dataclass(frozen=True)
class CacheEntry:
    """A directory of the cache, or a cluster's.

    Attributes:
        what: Which kind of thing: ``controlplane``, ``programs``, ``cluster`` …
        used: The cluster or version that uses it; empty if it can be removed.
    """

    what: str
    path: str
    size: int
    used: str


def contents() -> list[CacheEntry]:
    """List all entries, the largest first."""
    texts = {name: _settings_of(name) for name in discovery.names()}
    current = _current()
    entries = [_cluster(name) for name in texts]
    for folder in _folders(cache_dir()):
        for path in _folders(folder):
            used = ON_REQUEST
            if folder.name in VERSIONED:
                users = [name for name, text in texts.items() if f'"{path}' in text]
                used = f"cluster {', '.join(users)}" if users else THIS_VERSION if path in current else ""
            entries.append(CacheEntry(folder.name, str(path), disk_usage(path), used))
    return sorted(entries, key=lambda entry: -entry.size)


def clear(what: str | None) -> list[CacheEntry]:
    """Remove the entries that are not in use and return them.

    Args:
        what: A kind, of which all is removed that no cluster uses; None for what no version needs.
    """
    everything = [content for content in contents() if content.what != "cluster"]
    kinds = sorted({entry.what for entry in everything})
    if what is not None and what not in kinds:
        raise LocalClusterError(
            "nothing of this kind is in the cache",
            about=what,
            fix=f"the kinds are: {', '.join(kinds) or 'none'}; a cluster: `python -m localkube delete`",
        )
    going = [entry for entry in everything if not entry.used]
    if what is not None:
        going = [entry for entry in everything if entry.what == what and not entry.used.startswith("cluster")]
    with lock.cache_lock(lambda text: None):  # no build runs during the removal
        for entry in going:
            with writing(Path(entry.path)):
                remove_tree(Path(entry.path))
    return going


def _cluster(name: str) -> CacheEntry:
    paths = ClusterPaths(name)
    return CacheEntry("cluster", str(paths.root), disk_usage(paths.root), discovery.status(name)["state"])


def _settings_of(name: str) -> str:
    """Read the files of a cluster that name the programs it uses."""
    root = ClusterPaths(name).root
    return "".join(
        (root / file).read_text()
        for file in ("plan.json", "kubelet.json", "cluster.json")
        if (root / file).exists()
    )


def _current() -> set[Path]:
    """List the directories that this version would use for a new cluster."""
    used = {recipe.folder for recipe in RECIPES.values()} | {cache_dir() / "preload" / preload.key()}
    used |= set((cache_dir() / "programs").glob("named-*"))
    try:
        control_plane = binaries.present()
    except LocalClusterError:
        return used
    used |= {Path(argv[0]).parent for argv in control_plane.programs.values()}
    snapshot = etcd_snapshot.obtain(control_plane, report=lambda text: None, create=False)
    return used | ({snapshot} if snapshot else set())


def _folders(place: Path) -> Iterator[Path]:
    """Yield the directories in one, except hidden ones, which are still being made."""
    if place.is_dir():
        yield from sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
