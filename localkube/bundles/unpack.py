"""Use a bundle: unpack it into the cache, where every part of Trainyard looks before it downloads.

Each file is checked against its checksum while it is written to a temporary folder; only when all are correct
are the folders renamed into the cache. A bundle that is truncated, damaged or too large changes nothing.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import IO, Any

from localkube.bundles.manifest import AGAIN, IMAGES, NAME, BundleFile, BundleManifest, python_tag
from localkube.controlplane import duration, image_store
from localkube.controlplane.lock import Report, cache_lock
from localkube.errors import LocalClusterError
from localkube.paths import cache_dir, private_dir, unwritable, writing

CHUNK = 1 << 20
REPORT_SECONDS = 4
DAMAGES = (tarfile.TarError, EOFError, zlib.error, OverflowError)


def use_bundle(bundle: Path, *, report: Report) -> dict[str, Any]:
    """Unpack ``bundle`` into the cache and return its contents."""
    started = time.monotonic()
    cache = private_dir(cache_dir())
    with cache_lock(report):
        for stale in cache.glob(".bundle-*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=cache) as scratch:
            manifest = _unpack(bundle, Path(scratch), report)
            units = sorted({file.unit for file in manifest.files})
            for unit in units:
                _move_into_cache(Path(scratch), cache, unit)
    if IMAGES in units:
        # With the image program that was just unpacked.
        image_store.load(cache / IMAGES, report=report)
        (cache / IMAGES).unlink()
    if manifest.python and manifest.python != python_tag():
        report(
            f"The wheels are for {manifest.python}, and this Python is {python_tag()}: they will not be used"
        )
    report(f"{len(manifest.files)} files are in {cache} after {duration(time.monotonic() - started)}")
    return {"cache": str(cache), "holds": units, "seconds": round(time.monotonic() - started, 1)}


def _unpack(bundle: Path, target: Path, report: Report) -> BundleManifest:
    try:
        with bundle.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            first = tar.next()
            content = tar.extractfile(first) if first is not None and first.name == NAME else None
            manifest = BundleManifest.read(content.read() if content else b"", about=str(bundle))
            manifest.check(about=str(bundle))
            _check_space(target, manifest)
            _write_files(tar, target, manifest, bundle, report)
            return manifest
    except DAMAGES as error:
        raise _damaged(bundle, str(error) or "it ends too early") from error
    except FileNotFoundError as error:
        raise LocalClusterError(
            "there is no such file", about=str(bundle), fix="give the path of a bundle"
        ) from error
    except OSError as error:
        raise unwritable(target, error) from error


def _check_space(target: Path, manifest: BundleManifest) -> None:
    free = shutil.disk_usage(target).free
    if free < manifest.size:
        raise LocalClusterError(
            f"only {free / 1e6:,.0f} MB are free, and the bundle needs {manifest.size / 1e6:,.0f}",
            about=str(target.parent),
            fix="free space there, or point XDG_CACHE_HOME at a larger disk",
        )


def _write_files(
    tar: tarfile.TarFile, target: Path, manifest: BundleManifest, bundle: Path, report: Report
) -> None:
    expected = {file.path: file for file in manifest.files}
    written, reported_at = 0, time.monotonic()
    while (member := tar.next()) is not None:
        file = expected.pop(member.name, None)
        content = tar.extractfile(member) if member.isreg() else None
        if file is None or content is None:
            raise _damaged(bundle, f"{member.name} is not in its manifest")
        _write_file(content, target / file.path, file, bundle)
        written += file.size
        if time.monotonic() - reported_at > REPORT_SECONDS:
            reported_at = time.monotonic()
            report(f"Unpacking: {written / 1e6:,.0f} of {manifest.size / 1e6:,.0f} MB")
    if expected:
        raise _damaged(bundle, f"{len(expected)} files are missing, {next(iter(expected))} among them")


def _write_file(content: IO[bytes], path: Path, file: BundleFile, bundle: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as out:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        raise _damaged(bundle, f"{file.path} has the wrong checksum")
    path.chmod(0o700 if file.executable else 0o600)


def _move_into_cache(scratch: Path, cache: Path, unit: str) -> None:
    """Rename a folder into the cache; one that it replaces is removed afterwards."""
    target, old = cache / unit, scratch / "replaced" / unit
    with writing(target):
        private_dir(target.parent)
        if target.exists():
            old.parent.mkdir(parents=True, exist_ok=True)
            target.rename(old)
        (scratch / unit).rename(target)


def _damaged(bundle: Path, reason: str) -> LocalClusterError:
    return LocalClusterError(f"the bundle is cut or damaged: {reason}", about=str(bundle), fix=AGAIN)
