"""The manifest of a bundle: the platform it is for, and each file with its size and checksum.

It is the first member of the tar file, so that a bundle can be refused, or a full disk reported, before
anything is unpacked.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from localkube.controlplane import KUBERNETES
from localkube.errors import LocalClusterError
from localkube.paths import target

FORMAT = 1
NAME = "manifest.json"
# The first part of a path is the folder of the cache to which the file belongs; images go on to their store.
KINDS = ("controlplane", "programs", "preload", "datasets", "wheels", "images")
IMAGES = "images/images.tar"
AGAIN = "copy the bundle once more, or make it again with `python -m localkube bundle create`"


@dataclass(frozen=True)
class BundleFile:
    """One file: ``path`` below the cache and ``size`` in bytes."""

    path: str
    size: int
    sha256: str
    executable: bool

    @classmethod
    def of(cls, path: str, source: Path) -> "BundleFile":
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        status = source.stat()
        return cls(path, status.st_size, digest, bool(status.st_mode & 0o100))

    @property
    def unit(self) -> str:
        """The folder that is unpacked as a whole: ``wheels``, ``programs/NAME`` and so on."""
        parts = PurePosixPath(self.path).parts
        return parts[0] if parts[0] == "wheels" else "/".join(parts[:2])


@dataclass(frozen=True)
class BundleManifest:
    """The contents of a bundle; ``python`` is such as ``cp311`` if it has wheels, else empty."""

    kubernetes: str
    system: str
    machine: str
    python: str
    files: tuple[BundleFile, ...]

    @classmethod
    def here(cls, files: Sequence[BundleFile]) -> "BundleManifest":
        """Create the manifest of these files for this platform."""
        wheels = any(file.path.startswith("wheels/") for file in files)
        return cls(KUBERNETES, *target(), python_tag() if wheels else "", tuple(files))

    @classmethod
    def read(cls, text: bytes, *, about: str) -> "BundleManifest":
        try:
            raw: Mapping[str, Any] = json.loads(text)
            version = raw["format"]
            files = tuple(BundleFile(**file) for file in raw["files"]) if version == FORMAT else ()
            kubernetes, system, machine, python = (
                str(raw[name]) for name in ("kubernetes", "system", "machine", "python")
            )
            manifest = cls(kubernetes, system, machine, python, files)
        except (ValueError, KeyError, TypeError) as error:
            raise LocalClusterError("this is not a bundle of Trainyard", about=about, fix=AGAIN) from error
        if version != FORMAT:
            raise LocalClusterError(
                f"the bundle has format {version}, and this version reads {FORMAT}",
                about=about,
                fix="use the version of Trainyard that made it",
            )
        for file in manifest.files:
            parts = PurePosixPath(file.path).parts
            if len(parts) < 2 or parts[0] not in KINDS or ".." in parts or file.path.startswith("/"):
                raise LocalClusterError(
                    f"the bundle has an unexpected file: {file.path}", about=about, fix=AGAIN
                )
        return manifest

    def check(self, *, about: str) -> None:
        """Check that the bundle is for this platform."""
        if (self.system, self.machine) != target():
            raise LocalClusterError(
                f"the bundle is for {self.system} {self.machine}, and this machine is {' '.join(target())}",
                about=about,
                fix="make one on a machine like this: `python -m localkube bundle create FILE`",
            )

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def text(self) -> bytes:
        return json.dumps({"format": FORMAT} | asdict(self), indent=1).encode()


def python_tag() -> str:
    """Name this Python's version as wheels do, such as ``cp311``."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"
