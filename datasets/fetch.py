"""Fetch a file by HTTP: from one mirror after the other, going on where a connection was cut, checked at
the end.

Proxies come from the environment (``HTTPS_PROXY`` and the others), as urllib has it. What was fetched
before a cut, or before the pod was killed, stays in a ``.part`` file, and is neither taken for the file nor
fetched again.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from say import Meter, Trouble, full, say
from sources import Download

# Asked for a name, the resolver would take half a minute where nobody answers; a mirror that is there
# answers at once.
os.environ.setdefault("RES_OPTIONS", "timeout:2 attempts:1")
ANSWER_SECONDS = 10.0
BLOCK = 2**18
CUTS = 5  # so many in a row that bring nothing new, and the next mirror is tried
PAUSE_SECONDS = 0.5
AGENT = {"User-Agent": "trainyard", "Accept-Encoding": "identity"}


def fetch(download: Download, mirrors: Sequence[str], folder: Path) -> tuple[Path, str]:
    """Return the complete file, and the address from which it came.

    Args:
        download: What to fetch.
        mirrors: Addresses of folders.
        folder: Where it goes.

    Raises:
        Trouble: No mirror could be had, or what they have is something else; nothing of that is left.
        OSError: The volume is full, or cannot be written.
    """
    whole = folder / download.name
    part = whole.with_name(f"{download.name}.part")
    unreachable, wrong = [], []
    for mirror in mirrors:
        url = mirror.rstrip("/") + "/" + download.name
        try:
            resumed = _fetch_from(url, download, part)
            if resumed and not _is_right(
                part, download
            ):  # a part of something else: once more, from the start
                part.unlink()
                _fetch_from(url, download, part)
        except _Unavailable as error:
            say("source", url=url, reached=False, why=str(error))
            unreachable.append(f"{url}: {error}")
            continue
        if _is_right(part, download):
            part.rename(whole)
            return whole, url
        found = _digest(part, download.algorithm)
        say("source", url=url, reached=True, why="wrong checksum")
        wrong.append(
            f"{url} has something else: {part.stat().st_size} bytes with {download.algorithm} {found}, "
            f"not {download.size} bytes with {download.checksum}"
        )
        part.unlink()
    if wrong:
        raise Trouble("; ".join(["wrong checksum: " + wrong[0], *wrong[1:], *unreachable]))
    raise Trouble("no source could be reached: " + "; ".join(unreachable), unreachable=True)


class _Unavailable(Exception):
    """This mirror does not have the file, or does not answer."""


def _fetch_from(url: str, download: Download, part: Path) -> bool:
    """Fetch what is missing of a file; return whether a part was there before."""
    resumed = part.exists() and part.stat().st_size > 0
    cuts = 0
    while cuts < CUTS:
        before = part.stat().st_size if part.exists() else 0
        if before >= download.size:
            return resumed
        try:
            _receive(url, download, part, before)
            return resumed
        except urllib.error.HTTPError as error:
            if error.code == 416:  # it has less than we do: that was another file
                part.unlink()
                resumed = False
            elif error.code < 500 and error.code not in (408, 429):
                raise _Unavailable(f"HTTP status {error.code} {error.reason}") from error
            cause: Exception = error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and full(error):
                raise
            cause = error
        after = part.stat().st_size if part.exists() else 0
        if not after and not _answered(cause):
            raise _Unavailable(_words(cause)) from cause
        cuts = 0 if after > before else cuts + 1
        say("progress", doing=f"{_words(cause)}; going on at byte {after}", percent=None)
        time.sleep(PAUSE_SECONDS * (cuts + 1))
    raise _Unavailable(f"the connection was cut {CUTS} times in a row: {_words(cause)}")


def _receive(url: str, download: Download, part: Path, before: int) -> None:
    """Add to the part what one connection brings; a server that knows no ranges begins again.

    Raises:
        ConnectionError: It brought less than it had announced.
    """
    headers = AGENT | ({"Range": f"bytes={before}-"} if before else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        goes_on = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(
            f"bytes {before}-"
        )
        if not before:
            say("source", url=url, reached=True)
        before = before if goes_on else 0
        meter = Meter(f"downloading {download.name}", download.size, before)
        with part.open("r+b" if goes_on else "wb") as file:
            file.seek(before)
            for block in _blocks(answer):
                file.write(block)
                meter.add(len(block), mb_per_s=round(meter.rate() / 1e6, 1))
                if meter.done > download.size + BLOCK:  # something else, perhaps without an end
                    break
            file.truncate()
        announced = answer.length  # what is still missing of it
    if announced:
        raise ConnectionError(f"the connection was cut with {announced} bytes to come")


def _blocks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while block := answer.read1(BLOCK):
        yield block


def _is_right(path: Path, download: Download) -> bool:
    return path.stat().st_size == download.size and _digest(path, download.algorithm) == download.checksum


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _answered(error: Exception) -> bool:
    """Return whether a server was there at all."""
    return isinstance(error, urllib.error.HTTPError | http.client.HTTPException | ConnectionResetError) or (
        isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    )


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    error = reason if isinstance(reason, OSError) else error
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
