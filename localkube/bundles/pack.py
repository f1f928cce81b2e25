"""Create a bundle: the control plane, the programs of images, data sets and wheels, in one tar file.

Files come from this machine's cache; only wheels, and a control plane that is not cached yet, are fetched.
The file gets its name when it is complete.
"""

import contextlib
import gzip
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from localkube.bundles import wheels
from localkube.bundles.manifest import IMAGES, NAME, BundleFile, BundleManifest
from localkube.controlplane import binaries, duration, image_store
from localkube.controlplane.lock import Report
from localkube.controlplane.recipes import RECIPES
from localkube.errors import LocalClusterError
from localkube.kubelet.images import image_programs, store
from localkube.paths import cache_dir, private_dir, unwritable
from localkube.runtime import preload

REPORT_SECONDS = 4


def create_bundle(
    target: Path,
    *,
    with_wheels: bool,
    report: Report,
    images: Sequence[str] = (),
    constraints: Path = wheels.CONSTRAINTS,
) -> dict[str, Any]:
    """Create a bundle; return the file, its size, and the folders in it.

    Args:
        target: The file to write; an existing one is replaced.
        with_wheels: Take the wheels of everything that ``constraints`` pins, about 3 GB with torch.
        images: Container images to include; those that are not in the store are pulled.
    """
    started = time.monotonic()
    if target.is_dir():
        raise LocalClusterError(
            "this is a folder", about=str(target), fix=f"name a file: {target}/trainyard.tar"
        )
    sources = dict(_from_cache(report))
    partial = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=private_dir(cache_dir())) as folder:
            scratch = Path(folder)
            if with_wheels:
                wheels.fetch(scratch, report=report, constraints=constraints)
                sources |= {f"wheels/{path.name}": path for path in sorted(scratch.iterdir())}
            if images:
                _save_images(images, scratch / "images.tar", report)
                sources[IMAGES] = scratch / "images.tar"
            report(f"Checksums of {len(sources)} files")
            manifest = BundleManifest.here([BundleFile.of(path, source) for path, source in sources.items()])
            _write(partial, manifest, list(sources.values()), report)
        partial.replace(target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        partial.unlink(missing_ok=True)
    size = target.stat().st_size
    report(f"{target}: {size / 1e6:,.0f} MB in {duration(time.monotonic() - started)}")
    units = sorted({file.unit for file in manifest.files})
    return {
        "file": str(target),
        "bytes": size,
        "holds": units,
        "seconds": round(time.monotonic() - started, 1),
    }


def _from_cache(report: Report) -> Iterator[tuple[str, Path]]:
    """Yield each cached file's path in the bundle and its path on disk."""
    for folder in binaries.cached(binaries.obtain(report=report), report=report):
        yield from _files(f"controlplane/{folder.name}", folder)
    for recipe in RECIPES.values():
        if recipe.ready:
            yield from _files(f"programs/{recipe.folder.name}", recipe.folder)
        else:
            report(f"Without {recipe.name}: it is not in the cache; `{recipe.command}` obtains it")
    if program := image_programs.busybox():
        yield "programs/busybox/busybox", Path(program)
    else:
        report("Without BusyBox: it is not on this machine; apt-get install busybox-static brings it")
    try:
        library = preload.obtain(report).parent
        yield from _files(f"preload/{library.name}", library)
    except LocalClusterError as error:
        report(f"Without plain mode's library: {error}")
    yield from _files("datasets", cache_dir() / "datasets")


def _save_images(references: Sequence[str], target: Path, report: Report) -> None:
    for reference in references:
        if store.find(reference) is None:
            image_store.pull(reference, report=report)
    report(f"Saving {len(references)} container images")
    image_store.save(references, target)


def _files(path: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for source in sorted(folder.rglob("*")):
        if source.is_file() and not source.is_symlink():
            yield f"{path}/{source.relative_to(folder)}", source


def _write(target: Path, manifest: BundleManifest, sources: Sequence[Path], report: Report) -> None:
    written, reported_at = 0, time.monotonic()
    with target.open("wb") as out:
        # Wheels are compressed already; without them a bundle shrinks to a third.
        with contextlib.ExitStack() as stack:
            archive: BinaryIO | gzip.GzipFile = out
            if not manifest.python:
                archive = stack.enter_context(gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6))
            tar = stack.enter_context(tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT))
            text = manifest.text()
            tar.addfile(_member(NAME, len(text), executable=False), io.BytesIO(text))
            for file, source in zip(manifest.files, sources, strict=True):
                with source.open("rb") as content:
                    tar.addfile(_member(file.path, file.size, executable=file.executable), content)
                written += file.size
                if time.monotonic() - reported_at > REPORT_SECONDS:
                    reported_at = time.monotonic()
                    report(f"Bundle: {written / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB written")
        out.flush()
        os.fsync(out.fileno())


def _member(path: str, size: int, *, executable: bool) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = size, 0o755 if executable else 0o644, 0
    return member
