"""Container images made in memory, and the store's program that pulls them."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from localkube.controlplane import build
from localkube.paths import target

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def entry(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Make a member of a tar archive, with any field of TarInfo."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o644, 1_700_000_000
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def folder(name: str, mode: int = 0o755, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=mode, **fields)


def link(name: str, to: str, *, hard: bool = False, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE if hard else tarfile.SYMTYPE, linkname=to, **fields)


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Make the archive of a layer."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@dataclass(frozen=True)
class Image:
    """A manifest and the blobs that belong to it, by digest."""

    manifest: bytes
    media: str
    blobs: Mapping[str, bytes]
    manifests: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest(self.manifest)

    @property
    def id(self) -> str:
        return json.loads(self.manifest)["config"]["digest"]


def image(
    *layers: bytes,
    compress: str = "gzip",
    docker: bool = False,
    architecture: str = "",
    config: Mapping[str, Any] | None = None,
) -> Image:
    """Make an image of archives of layers.

    Args:
        compress: ``gzip``, ``zstd`` or nothing.
        docker: With the media types of Docker.
        architecture: Of the config; by default this machine's.
    """
    blobs, descriptors = {}, []
    for blob in layers:
        packed = _compressed(blob, compress)
        suffix = f"+{compress}" if compress else ""
        media = DOCKER_LAYER if docker else LAYER + suffix
        blobs[digest(packed)] = packed
        descriptors.append({"mediaType": media, "digest": digest(packed), "size": len(packed)})
    text = json.dumps(
        {
            "architecture": architecture or target()[1],
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": [digest(blob) for blob in layers]},
        }
    ).encode()
    blobs[digest(text)] = text
    media = DOCKER_MANIFEST if docker else MANIFEST
    manifest = {
        "schemaVersion": 2,
        "mediaType": media,
        "config": {
            "mediaType": DOCKER_CONFIG if docker else CONFIG,
            "digest": digest(text),
            "size": len(text),
        },
        "layers": descriptors,
    }
    return Image(json.dumps(manifest).encode(), media, blobs)


def small(text: bytes = b"hello", **options: Any) -> Image:
    """Make an image with one small file."""
    return image(layer(folder("etc"), entry("etc/motd", text)), **options)


def names(store: Path, folder: str) -> list[str]:
    """List what a folder of a store of images has."""
    return sorted(path.name for path in (store / folder).iterdir())


def index(images: Mapping[str, Image], *, docker: bool = False) -> Image:
    """Make an index of images by platform, such as ``linux/arm64`` or ``linux/arm/v7``."""
    listed, blobs, manifests = [], {}, {}
    for platform, built in images.items():
        system, architecture, *variant = platform.split("/")
        described = {"os": system, "architecture": architecture} | (
            {"variant": variant[0]} if variant else {}
        )
        listed.append(
            {
                "mediaType": built.media,
                "digest": built.digest,
                "size": len(built.manifest),
                "platform": described,
            }
        )
        blobs |= built.blobs
        manifests[built.digest] = (built.media, built.manifest)
    media = MANIFEST_LIST if docker else INDEX
    text = json.dumps({"schemaVersion": 2, "mediaType": media, "manifests": listed}).encode()
    return Image(text, media, blobs, manifests)


def _compressed(content: bytes, how: str) -> bytes:
    if how == "zstd":
        done = subprocess.run(["zstd", "-q", "-c"], input=content, stdout=subprocess.PIPE, check=True)
        return done.stdout
    return gzip.compress(content, mtime=0) if how == "gzip" else content


@cache
def program() -> str:
    """Build the store's program alone, which takes seconds when the control plane has been built."""
    goal = Path(tempfile.mkdtemp(prefix="images-program-")) / "images"
    env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    command = ["go", "build", *build.flags(), "-o", str(goal), "./images/command"]
    subprocess.run(command, cwd=build.SOURCES, env=env, check=True)
    goal.parent.chmod(0o755)
    return str(goal)


@dataclass(frozen=True)
class StoreResult:
    """What the program has said: its exit status, and its events by name."""

    status: int
    events: Sequence[Mapping[str, Any]]
    errors: str

    def last(self, event: str) -> Mapping[str, Any]:
        assert self.events and self.events[-1]["event"] == event, (self.events[-3:], self.errors)
        return self.events[-1]

    @property
    def image(self) -> Mapping[str, Any]:
        assert self.status == 0, (self.events[-3:], self.errors)
        return self.events[-1]["image"]

    @property
    def reason(self) -> str:
        assert self.status == 1, (self.status, self.events[-3:], self.errors)
        return self.last("failed")["reason"]

    @property
    def message(self) -> str:
        return self.last("failed")["message"]


def command(store: Path, verb: str, *arguments: str, for_pod: bool = False) -> list[str]:
    options = ["--loopback"] if verb == "pull" and not for_pod else []
    return [program(), verb, "--store", str(store), *options, *arguments]


def result_of(done: subprocess.CompletedProcess) -> StoreResult:
    return StoreResult(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)


def images(
    store: Path,
    verb: str,
    *arguments: str,
    auths: Iterable[Mapping[str, Any]] = (),
    env: Mapping[str, str] | None = None,
    seconds: float = 120,
    prefix: Sequence[str] = (),
    enter: Callable[[], None] | None = None,
    for_pod: bool = False,
) -> StoreResult:
    """Run a command of the store to its end; one for a pod must not use registries on the loopback."""
    done = subprocess.run(
        [*prefix, *command(store, verb, *arguments, for_pod=for_pod)],
        input=json.dumps({"auths": list(auths)}),
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **(env or {})},
        preexec_fn=enter,
        check=False,
    )
    return result_of(done)
