"""Copying files to and from a volume: one tar stream each way, complete or not at all.

What is sent is unpacked into a folder of its own and then renamed into its place; so is what is fetched. The
last member of a stream says that it is whole.
"""

import io
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from kitlib.display.progress import Progress
from kitlib.k8s.quantities import format_bytes
from kitlib.storage.helper import MISSING, TAKEN, Helper

END = ".trainyard-end"
LOOK_SECONDS = 0.5
# $1: its name in the stream, $2: where it is to lie, $3: whether what lies there goes.
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
# $1: the folder, $2: the name in it.
_SEND = f'cd "./$1" 2>/dev/null && test -e "./$2" || exit {MISSING}; tar -cf - "./$2"'
_READ = f'test -f "./$1" || exit {MISSING}; cat "./$1"'
_STAT = "-exec stat -c '%F\t%s\t%Y\t%n' {} +"
_LIST = f"""
test -e "./$1" || exit {MISSING}
if [ -d "./$1" ]; then cd "./$1" && find . -mindepth 1 -maxdepth 1 {_STAT}; else find "./$1" {_STAT}; fi
"""


def entries(helper: Helper, path: str) -> list[str]:
    """Return a line of type, size, time and name for each entry of a folder, or for a file."""
    return helper.output(_LIST, path).splitlines()


def content(helper: Helper, path: str) -> bytes:
    """Return what is in a file."""
    with helper.running(_READ, path) as process:
        process.stdin.close()
        return process.stdout.read()


def remove(helper: Helper, path: str) -> None:
    """Delete a file or a folder; it disappears at once, whatever it takes to free its room."""
    helper.output('if [ -e "./$1" ]; then mv "./$1" "$STAGING" && rm -rf "$STAGING"; fi', path)


def send(
    helper: Helper, source: Path, to: str, *, replace: bool, more: Mapping[str, bytes], line: Progress
) -> str:
    """Copy a file or a folder to ``to``, and return what was done in words."""
    # GNU's format and not PAX: BusyBox, whose tar unpacks it, knows long names in no other.
    with helper.running(_RECEIVE, source.name, to, "replace" if replace else "keep") as process:
        counted = _Counted(process.stdin, line, "copied")
        with tarfile.open(fileobj=counted, mode="w|", format=tarfile.GNU_FORMAT, bufsize=2**18) as stream:
            files = 0
            for path in _files(source):
                member = stream.gettarinfo(path, arcname=str(path.relative_to(source.parent)))
                files += member.isreg()
                if member.isreg():
                    with path.open("rb") as content:
                        stream.addfile(_anybodys(member), content)
                else:
                    stream.addfile(_anybodys(member))
            for name, data in more.items():
                member = tarfile.TarInfo(f"{source.name}/{name}")
                member.size, member.mtime = len(data), time.time()
                stream.addfile(_anybodys(member), io.BytesIO(data))
            stream.addfile(tarfile.TarInfo(END), io.BytesIO())
    return f"{files} {'file' if files == 1 else 'files'}, {format_bytes(counted.bytes)}"


def fetch(helper: Helper, path: str, to: Path, *, line: Progress) -> str:
    """Copy a file or a folder of the volume to ``to``, and return what was done in words."""
    folder, _, name = path.rpartition("/")
    with tempfile.TemporaryDirectory(prefix=".trainyard-", dir=to.parent) as staging:
        with helper.running(_SEND, folder, name) as process:
            process.stdin.close()
            counted = _Counted(process.stdout, line, "fetched")
            with tarfile.open(fileobj=counted, mode="r|", bufsize=2**18) as stream:
                stream.extractall(staging, filter="data")
            while counted.read(2**18):  # what pads the last block
                pass
        Path(staging, name).replace(to)
    return format_bytes(counted.bytes)


def _files(source: Path) -> Iterator[Path]:
    """Yield a file, or a folder with all that is below it; what a link leads to is not followed."""
    yield source
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_symlink() or path.is_dir() or path.is_file():
                yield path


def _anybodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member as every pod may read it, whoever runs there."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o755 if member.isdir() else 0o644
    return member


class _Counted:
    """A pipe that counts, and tells of it a few times a second."""

    def __init__(self, pipe: IO[bytes], line: Progress, verb: str) -> None:
        self.pipe, self.line, self.verb = pipe, line, verb
        self.bytes, self.began = 0, time.monotonic()
        self.told = self.began

    def write(self, data: bytes) -> int:
        self.pipe.write(data)
        self._count(len(data))
        return len(data)

    def read(self, size: int) -> bytes:
        data = self.pipe.read(size)
        self._count(len(data))
        return data

    def _count(self, more: int) -> None:
        self.bytes += more
        now = time.monotonic()
        if self.bytes and now - self.told > LOOK_SECONDS:
            self.told = now
            rate = self.bytes / (now - self.began) / 1e6
            self.line.update(f"{self.verb} {format_bytes(self.bytes)}, {rate:.0f} MB/s")
