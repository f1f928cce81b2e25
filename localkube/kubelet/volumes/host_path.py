"""Check a ``hostPath`` volume as its type asks, and that it is not the clusters' own directory.

Access is that of the user who runs the cluster. Source:
https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

_CHECKS = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "DirectoryOrCreate": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "FileOrCreate": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HostPathError(Exception):
    """The path is not what the volume says it is."""


def refuse_private(path: str | Path, private: Iterable[str]) -> None:
    """Refuse a path that is, or lies in, a directory which pods do not see.

    The mount itself looks again (``site/rootfs.py``): links may change until then.

    Args:
        path: Absolute.
        private: The directories, as real paths.

    Raises:
        HostPathError: It does.
    """
    real = os.path.realpath(path)
    for directory in private:
        if os.path.commonpath((real, directory)) == directory:
            raise HostPathError(f"{path} belongs to the local cluster itself, and is not shown to pods")


def checked(path: str, kind: str) -> Path:
    """Return the path, made where its type allows that.

    A path without a type that does not exist becomes a directory, as container engines do it.

    Args:
        path: Absolute.
        kind: ``Directory``, ``DirectoryOrCreate``, ``File``, …, or empty.

    Raises:
        HostPathError: It is missing, or something else.
        OSError: This user may not look there, or not create it.
    """
    place = Path(path)
    if kind and kind not in _CHECKS:
        raise HostPathError(f"{kind} is an invalid volume type")
    if not place.exists():
        if kind in ("", "DirectoryOrCreate"):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o755)
        elif kind == "FileOrCreate":
            place.touch()
            place.chmod(0o644)
    if not kind:
        return place
    is_kind, words = _CHECKS[kind]
    if not place.exists() or not is_kind(place.stat().st_mode):
        raise HostPathError(f"hostPath type check failed: {path} is not {words}")
    return place
