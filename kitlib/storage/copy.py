"""Copying files to and from a volume: one tar stream in each direction, complete or not at all.

A stream is unpacked into a folder of its own, which is then renamed; its last member marks that it is whole.
Links are sent by the rule of `tree`; of those that come back, what leads out of the copy is left out and
named. The pod that unpacks a stream is in `helper_pod`.
"""

import contextlib
import io
import posixpath
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, cast

from kitlib.display.progress import Progress
from kitlib.display.tables import Table, age, printable
from kitlib.errors import BadInput
from kitlib.k8s.quantities import format_bytes
from kitlib.storage.helper_pod import MISSING, OWN, TAKEN, HelperPod
from kitlib.storage.tree import walk

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # without the filters of PEP 706
    from backports import tarfile  # type: ignore[no-redef]

END = ".trainyard-end"
LOOK_SECONDS = 0.5
MAX_NAMED = 5  # of the entries that are left out
# $1: its name in the stream, $2: its path on the volume, $3: whether it replaces an existing one.
_RECEIVE = f"""
set -e
trap 'rm -rf "$STAGING"' EXIT
rm -rf "$STAGING"; mkdir "$STAGING"
tar -xof - -C "$STAGING"
test -e "$STAGING/{END}" || {{ echo 'the connection was lost on the way' >&2; exit 1; }}
mkdir -p "$(dirname "./$2")"
if [ -d "./$2" ]; then
  [ "$3" = replace ] || exit {TAKEN}
  mv "./$2" "$STAGING/{END}.old"
fi
mv "$STAGING/$1" "./$2"
"""
# $1: the path; if it is a link, what it leads to is sent. The slash keeps newlines at the end of a name.
_SEND = f"""
test -e "./$1" || exit {MISSING}
place=$(readlink -f "./$1" && echo /); place=${{place%??}}
case "$place/" in "$(pwd -P)"/*) ;; *) exit {MISSING} ;; esac
folder=${{place%/*}}; cd "${{folder:-/}}" && tar -cf - "./${{place##*/}}"
"""
_READ = f'test -f "./$1" || exit {MISSING}; cat "./$1"'
# A name may have newlines and tabs in it, but no two slashes.
_END_OF_ENTRY = "//\n"
_STAT = "-exec stat -c '%F\t%s\t%Y\t%n//' {} +"
_LIST = f"""
test -e "./$1" || exit {MISSING}
if [ -d "./$1" ]; then cd "./$1" && find . -mindepth 1 -maxdepth 1 {_STAT}; else find "./$1" {_STAT}; fi
"""


def inside(path: object, *, what: str = "path") -> str:
    """Normalise a path on a volume, relative to its root, which is "".

    Example:
        >>> inside("/cifar10//train/")
        'cifar10/train'
    """
    text = str(path)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not isinstance(path, str) or ".." in parts or "\0" in text:
        fix = f'paths begin at the root of the volume: `{what}="cifar10/train"`'
        raise BadInput("this path leaves the volume", about=f"{what}={path!r}", fix=fix)
    return "/".join(parts)


def target(name: str, to: object) -> str:
    """Join the path of an upload called ``name``: ``to``, or below it where that ends with a slash."""
    place = inside(to, what="to")
    return posixpath.join(place, name) if not place or str(to).endswith("/") else place


def listing(lines: Iterable[str], *, empty: str) -> Table:
    """Tabulate a folder, from texts of type, size, time and name between tabs."""
    rows = []
    for line in lines:
        kind, size, seconds, name = line.split("\t", 3)
        if not posixpath.basename(name).startswith(OWN):
            shown = format_bytes(int(size)) if kind.startswith("regular") else None
            kind = "file" if kind.startswith("regular") else kind  # GNU says "regular empty file"
            # No file name hides what it is, or looks like two.
            plain = printable(name.removeprefix("./")).replace("\n", "\\n").replace("\t", "\\t")
            rows.append((plain, kind, shown, _age(int(seconds))))
    return Table(("name", "kind", "size", "age"), sorted(rows), empty=empty)


def _age(modified: int) -> str | None:
    """Format the age of a file; None for a time that no calendar has."""
    try:
        return age(datetime.fromtimestamp(modified, UTC).isoformat())
    except (ValueError, OverflowError, OSError):
        return None


def entries(helper: HelperPod, path: str) -> list[str]:
    """List a folder, or a file: a text of type, size, time and name for each entry."""
    return helper.output(_LIST, path).split(_END_OF_ENTRY)[:-1]


def content(helper: HelperPod, path: str) -> bytes:
    with helper.running(_READ, path) as (stdin, stdout):
        stdin.close()
        return stdout.read()


def remove(helper: HelperPod, path: str) -> None:
    """Delete a file or a folder; it disappears at once, however long freeing its space takes."""
    helper.output('if [ -e "./$1" ]; then mv "./$1" "$STAGING" && rm -rf "$STAGING"; fi', path)


def send(
    helper: HelperPod, source: Path, to: str, *, replace: bool, more: Mapping[str, bytes], line: Progress
) -> str:
    """Copy a file or a folder to ``to``; return a description of the number of files and bytes."""
    # GNU's format and not PAX: BusyBox, whose tar unpacks it, supports long names in no other.
    with helper.running(_RECEIVE, source.name, to, "replace" if replace else "keep") as (stdin, _):
        counted = _Counted(stdin, line, "copied")
        pipe = cast(IO[bytes], counted)  # tarfile calls no other method of a stream
        skipped: list[str] = []
        with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.GNU_FORMAT, bufsize=2**18) as stream:
            files = 0
            for entry in walk(source, skipped=skipped):
                member = stream.gettarinfo(entry.source, arcname=str(PurePosixPath(source.name, entry.path)))
                member.linkname = entry.link or member.linkname
                files += not (member.isdir() or member.issym())
                with entry.source.open("rb") if member.isreg() else contextlib.nullcontext() as content:
                    stream.addfile(_readable(member), content)
            for name, data in more.items():
                member = tarfile.TarInfo(f"{source.name}/{name}")
                member.size, member.mtime = len(data), time.time()
                stream.addfile(_readable(member), io.BytesIO(data))
            stream.addfile(tarfile.TarInfo(END), io.BytesIO())
    return f"{files} {'file' if files == 1 else 'files'}, {format_bytes(counted.bytes)}{_left_out(skipped)}"


def fetch(helper: HelperPod, path: str, to: Path, *, line: Progress) -> str:
    """Copy a file or a folder of the volume to ``to``; return a description of its files' size."""
    sizes, skipped = list[int](), list[str]()

    def accept(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        top = posixpath.normpath(member.name).partition("/")[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
        try:
            if member.issym() and target.partition("/")[0] != top:
                raise tarfile.LinkOutsideDestinationError(member, target)
            filtered = tarfile.data_filter(member, folder)
            sizes.append(member.size)
            return filtered
        except tarfile.FilterError as error:
            reason = "leads out of it" if member.issym() or member.islnk() else str(error)
            skipped.append(f"{member.name.removeprefix('./')!r} {reason}")
            return None

    with tempfile.TemporaryDirectory(prefix=".trainyard-", dir=to.parent) as staging:
        with helper.running(_SEND, path) as (stdin, stdout):
            stdin.close()
            counted = _Counted(stdout, line, "fetched")
            pipe = cast(IO[bytes], counted)
            with tarfile.open(fileobj=pipe, mode="r|", bufsize=2**18) as stream:
                stream.extractall(staging, filter=accept)
            while counted.read(2**18):  # what pads the last block
                pass
        entries = list(Path(staging).iterdir())
        if len(entries) != 1:
            raise helper.failed(f"it contains no files that can be copied{_left_out(skipped)}")
        entries[0].replace(to)
    return f"{format_bytes(sum(sizes))}{_left_out(skipped)}"


def _left_out(skipped: Sequence[str]) -> str:
    shown = ", ".join(skipped[:MAX_NAMED]) + (" …" if len(skipped) > MAX_NAMED else "")
    return f"; {len(skipped)} left out: {shown}" if skipped else ""


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Let every user of every pod read a member."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o755 if member.isdir() else 0o644
    return member


class _Counted:
    """A pipe that counts bytes, and reports them a few times a second."""

    def __init__(self, pipe: IO[bytes], line: Progress, verb: str) -> None:
        self.pipe, self.line, self.verb = pipe, line, verb
        self.bytes, self.began = 0, time.monotonic()
        self.reported = self.began

    def write(self, data: bytes, /) -> int:
        self.pipe.write(data)
        self._count(len(data))
        return len(data)

    def read(self, size: int, /) -> bytes:
        data = self.pipe.read(size)
        self._count(len(data))
        return data

    def _count(self, more: int) -> None:
        self.bytes += more
        now = time.monotonic()
        if self.bytes and now - self.reported > LOOK_SECONDS:
            self.reported = now
            rate = self.bytes / (now - self.began) / 1e6
            self.line.update(f"{self.verb} {format_bytes(self.bytes)}, {rate:.0f} MB/s")
