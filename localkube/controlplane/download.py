"""Download the official release, each file checked by its SHA-256.

An interrupted download is resumed, in this run or the next. Files and the folder get their final names only
when they are complete. The digests are this module's: one from the server would vouch for whatever it serves.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localkube.controlplane import ETCD, KUBERNETES, duration
from localkube.errors import LocalClusterError, Skipped
from localkube.lock import Report
from localkube.paths import private_dir, target, unwritable

KUBERNETES_URL = "https://dl.k8s.io"
ETCD_URL = "https://github.com/etcd-io/etcd/releases/download"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
# SHA-256 of each file by its path on the server, such as ``v1.36.3/bin/linux/amd64/kubectl`` and
# ``v3.6.8/etcd-v3.6.8-linux-amd64.tar.gz``. docs/building.md says how to add them. Without, it is built.
DIGESTS: Mapping[str, str] = {}
REACH_SECONDS = 5
STALL_SECONDS = 30
ATTEMPTS = 3
REPORT_SECONDS = 5
CHUNK = 1 << 18
FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_ERRORS = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
AGAIN = "try again, or build the control plane with TRAINYARD_CONTROLPLANE=build"


@dataclass(frozen=True)
class ReleaseFile:
    """A file of a release: its server, its path there, and the digest that it must have."""

    server: str
    path: str
    digest: str

    @property
    def url(self) -> str:
        return f"{self.server}/{self.path}"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def release(folder: Path, *, report: Report) -> None:
    """Download the release for this machine into ``folder``, which appears when it is complete.

    Raises:
        Skipped: No digests are known, or the server cannot be reached, refuses, or cuts every attempt.
        LocalClusterError: What came has another digest, or it cannot be written.
    """
    system, machine = target()
    if system != "linux":
        raise Skipped(f"there is no release of the servers for {system}")
    kubernetes = os.environ.get("TRAINYARD_KUBERNETES_URL", KUBERNETES_URL).rstrip("/")
    etcd = os.environ.get("TRAINYARD_ETCD_URL", ETCD_URL).rstrip("/")
    base = f"{KUBERNETES}/bin/{system}/{machine}"
    files = [_pinned(kubernetes, f"{base}/{name}") for name in PROGRAMS]
    archive = _pinned(etcd, f"{ETCD}/etcd-{ETCD}-{system}-{machine}.tar.gz")
    for server in (kubernetes, etcd):
        _reach(server)
    partial = private_dir(folder.with_name(f"{folder.name}.partial"))
    with _writing(partial):
        for file in (*files, archive):
            if not (partial / file.name).exists():
                _fetch(file, partial, report)
        _extract(partial / archive.name, partial / "etcd")
        for name in (*PROGRAMS, "etcd"):
            (partial / name).chmod(0o700)
        (partial / archive.name).unlink()
        partial.rename(folder)


def _pinned(server: str, path: str) -> ReleaseFile:
    if path not in DIGESTS:
        raise Skipped(f"no digest of {path} is known")
    return ReleaseFile(server, path, DIGESTS[path])


def _reach(server: str) -> None:
    """Ask a server for anything, so that an unreachable one costs seconds."""
    try:
        urllib.request.urlopen(f"{server}/", timeout=REACH_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # it is there
    except (OSError, http.client.HTTPException) as error:
        raise Skipped(f"{server}: {_reason(error)}") from error


def _fetch(file: ReleaseFile, folder: Path, report: Report) -> None:
    part = folder / f"{file.name}.part"
    for attempt in range(1, ATTEMPTS + 1):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _continue(file, part, report)
        except urllib.error.HTTPError as error:
            raise Skipped(f"{file.url}: {_reason(error)}") from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            if attempt == ATTEMPTS:
                kept = f"{part.stat().st_size:,} bytes are kept" if part.exists() else "nothing came"
                raise Skipped(f"{file.url}: cut {ATTEMPTS} times ({_reason(error)}); {kept}") from error
            report(f"Download of {file.name}: {_reason(error)}; continuing")
            continue
        if _sha256(part) == file.digest:
            part.rename(folder / file.name)
            return
        part.unlink()
        if not resumed:
            break
        # What had been kept may be of another release; the whole file gets one more chance.
        report(f"Download of {file.name}: what had been kept of it does not fit; starting again")
    raise LocalClusterError("the download has the wrong checksum and was deleted", about=file.url, fix=AGAIN)


def _continue(file: ReleaseFile, part: Path, report: Report) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=STALL_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # it is all here already; the checksum decides
        raise
    with answer:
        appending = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        have = have if appending else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if appending else "wb") as out:
            _copy(answer, out, file.name, have, total, report)
            out.flush()
            os.fsync(out.fileno())
        if total is not None and part.stat().st_size < total:
            raise ConnectionError(f"ended after {part.stat().st_size:,} of {total:,} bytes")


def _copy(answer, out, name: str, have: int, total: int | None, report: Report) -> None:
    started = spoke = time.monotonic()
    first = have
    while chunk := answer.read1(CHUNK):
        out.write(chunk)
        have += len(chunk)
        now = time.monotonic()
        if now - spoke >= REPORT_SECONDS:
            spoke = now
            rate = (have - first) / (now - started)
            left = f", {duration((total - have) / rate)} left" if total else ""
            of = f" of {total / 1e6:.0f}" if total else ""
            report(f"Download of {name}: {have / 1e6:.0f}{of} MB{left}")
    report(f"Download of {name}: {have / 1e6:.1f} MB in {duration(time.monotonic() - started)}")


def _extract(archive: Path, etcd: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.rpartition("/")[2] == "etcd":
                source = tar.extractfile(member)
                assert source is not None, "a regular file has content"
                with source, etcd.open("wb") as out:
                    shutil.copyfileobj(source, out)
                return
    raise LocalClusterError("the archive has no etcd in it", about=archive.name, fix=AGAIN)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    cause = getattr(error, "reason", error)
    return str(cause) or type(cause).__name__


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.TarError as error:
        raise LocalClusterError(
            f"the archive cannot be read: {error}", about=str(folder), fix=AGAIN
        ) from error
    except OSError as error:
        if error.errno in FULL:
            # A disk that is full for us is full for others: give back what cannot be used.
            shutil.rmtree(folder, ignore_errors=True)
        raise unwritable(folder, error) from error
