"""Download a file by HTTP: try the mirrors in turn, resume interrupted downloads, and verify the checksum.

Proxies come from the environment (``HTTPS_PROXY`` and the others), as in urllib. Data received before an
interruption, or before the pod was killed, stay in a ``.part`` file, which is never used as the complete file
and is not downloaded again.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from events import Meter, PreparationError, emit, is_disk_full
from sources import Download

# By default an unanswered DNS query takes half a minute.
os.environ.setdefault("RES_OPTIONS", "timeout:2 attempts:1")
RESPONSE_SECONDS = 10.0
BLOCK = 2**18
MAX_INTERRUPTIONS = 5  # consecutive attempts without new data before the next mirror is tried
PAUSE_SECONDS = 0.5
AGENT = {"User-Agent": "trainyard", "Accept-Encoding": "identity"}


def fetch(download: Download, mirrors: Sequence[str], folder: Path) -> tuple[Path, str]:
    """Download the complete file; return its path and the address that it came from.

    Args:
        download: The file to download.
        mirrors: Addresses of folders that have the file.
        folder: The target folder.

    Raises:
        PreparationError: No mirror could be reached, or the file is not the expected one; it is then deleted.
        OSError: The volume is full or not writable.
    """
    whole = folder / download.name
    part = whole.with_name(f"{download.name}.part")
    unreachable, wrong = [], []
    for mirror in mirrors:
        url = mirror.rstrip("/") + "/" + download.name
        try:
            resumed = _fetch_from(url, download, part)
            if resumed and not _is_valid(part, download):  # a part of a different file: start again
                part.unlink()
                _fetch_from(url, download, part)
        except _Unavailable as error:
            emit("source", url=url, reached=False, why=str(error))
            unreachable.append(f"{url}: {error}")
            continue
        if _is_valid(part, download):
            part.rename(whole)
            return whole, url
        digest = _digest(part, download.algorithm)
        emit("source", url=url, reached=True, why="wrong checksum")
        wrong.append(
            f"{url} has another file: {part.stat().st_size} bytes with {download.algorithm} {digest}, "
            f"not {download.size} bytes with {download.checksum}"
        )
        part.unlink()
    if wrong:
        raise PreparationError("; ".join(["wrong checksum: " + wrong[0], *wrong[1:], *unreachable]))
    raise PreparationError("no source could be reached: " + "; ".join(unreachable), unreachable=True)


class _Unavailable(Exception):
    """This mirror does not have the file, or does not answer."""


def _fetch_from(url: str, download: Download, part: Path) -> bool:
    """Download the missing rest of a file; return True if a part existed before."""
    resumed = part.exists() and part.stat().st_size > 0
    interruptions = 0
    while interruptions < MAX_INTERRUPTIONS:
        before = part.stat().st_size if part.exists() else 0
        if before >= download.size:
            return resumed
        try:
            _receive(url, download, part, before)
            return resumed
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the remote file is shorter than our part: a different file
                part.unlink()
                resumed = False
            elif error.code < 500 and error.code not in (408, 429):
                raise _Unavailable(f"HTTP status {error.code} {error.reason}") from error
            cause: Exception = error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and is_disk_full(error):
                raise
            cause = error
        after = part.stat().st_size if part.exists() else 0
        if not after and not _has_responded(cause):
            raise _Unavailable(_message(cause)) from cause
        interruptions = 0 if after > before else interruptions + 1
        emit("progress", doing=f"{_message(cause)}; resuming at byte {after}", percent=None)
        time.sleep(PAUSE_SECONDS * (interruptions + 1))
    raise _Unavailable(
        f"the connection was interrupted {MAX_INTERRUPTIONS} times in a row: {_message(cause)}"
    )


def _receive(url: str, download: Download, part: Path, before: int) -> None:
    """Append the data of one connection to the part; start again if the server does not support ranges.

    Raises:
        ConnectionError: The server sent less than announced.
    """
    headers = AGENT | ({"Range": f"bytes={before}-"} if before else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=RESPONSE_SECONDS) as response:
        is_resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(
            f"bytes {before}-"
        )
        if not before:
            emit("source", url=url, reached=True)
        before = before if is_resumed else 0
        meter = Meter(f"downloading {download.name}", download.size, before)
        with part.open("r+b" if is_resumed else "wb") as file:
            file.seek(before)
            for block in _blocks(response):
                file.write(block)
                meter.add(len(block), mb_per_s=round(meter.rate() / 1e6, 1))
                if meter.done > download.size + BLOCK:  # a different file, perhaps endless
                    break
            file.truncate()
        announced = response.length  # the bytes still missing
    if announced:
        raise ConnectionError(f"the connection was closed with {announced} bytes missing")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while block := response.read1(BLOCK):
        yield block


def _is_valid(path: Path, download: Download) -> bool:
    return path.stat().st_size == download.size and _digest(path, download.algorithm) == download.checksum


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _has_responded(error: Exception) -> bool:
    """Return True if the server responded at all."""
    return isinstance(error, urllib.error.HTTPError | http.client.HTTPException | ConnectionResetError) or (
        isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    )


def _message(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    error = reason if isinstance(reason, OSError) else error
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
