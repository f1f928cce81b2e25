"""The configuration that a container takes from its image, a pulled one or a stand-in."""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_BYTES = 4 << 20
OPAQUE = "user.overlay.opaque"


@dataclass(frozen=True)
class ResolvedImage:
    """An image as a container's specification needs it.

    Attributes:
        name: The name shown in the container's status.
        id: The digest by which it can be pulled again; a description for a stand-in.
        user: USER, as in ``1000:100`` or ``nginx``; empty for root.
        layers: Names of the layers in ``store``, the lowest first; none for a stand-in, which runs on the
            host's file system.
        store: The directory of the layers.
        copy: A copy of the image's files for this container alone, where layers cannot be mounted.
        provides: Command names by which the image calls the program of a stand-in, and
        program: the command of that program on this machine.
        files: A folder of this machine that a stand-in has at ``directory``.
        program_directory: A folder in which the program has its usual name, for PATH.
    """

    name: str
    id: str = ""
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    directory: str = "/"
    user: str = ""
    stop_signal: str = ""
    layers: tuple[str, ...] = ()
    store: Path = Path("/")
    copy: Path | None = None
    provides: Sequence[str] = ()
    files: str = ""
    program: Sequence[str] = ()
    program_directory: str = ""

    def command_line(self, container: Mapping[str, Any]) -> list[str] | None:
        """Combine a container's command and arguments with the image's; None where there is no command.

        Source: https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
        """
        command, arguments = container.get("command"), container.get("args")
        words = [*self.entrypoint, *(arguments or self.command)]
        line = [*command, *(arguments or [])] if command else words
        if line and line[0] in self.provides:
            line = [*self.program, *line[1:]]
        return line or None

    def read(self, path: str) -> str | None:
        """Read a small text file of the image, such as ``/etc/passwd``; None where it has none."""
        if not self.layers:
            place = Path(path)
            return place.read_text(errors="replace") if place.is_file() else None
        for layer in reversed(self.layers):
            content = _read_in_layer(self.store / layer, path.strip("/").split("/"))
            if content is not None:
                return content.decode(errors="replace") if content is not HIDDEN else None
        return None


def from_record(record: Mapping[str, Any], name: str, store: Path) -> ResolvedImage:
    """Describe an image of the store (``store.py``)."""
    config = record["config"]
    env = dict(variable.split("=", 1) for variable in config.get("Env") or [] if "=" in variable)
    repository = re.sub(r":[^:/]*$", "", name.partition("@")[0]) + "@"
    digests = record.get("digests") or []
    return ResolvedImage(
        name=name,
        id=next((digest for digest in digests if digest.startswith(repository)), (*digests, record["id"])[0]),
        entrypoint=config.get("Entrypoint") or (),
        command=config.get("Cmd") or (),
        env={"PATH": DEFAULT_PATH} | env,
        directory=config.get("WorkingDir") or "/",
        user=config.get("User") or "",
        stop_signal=config.get("StopSignal") or "",
        layers=tuple(record["layers"]),
        store=store / "layers",
    )


HIDDEN = b"\0hidden"


def _read_in_layer(root: Path, parts: Sequence[str]) -> bytes | None:
    """Read a file of one layer; ``HIDDEN`` if the layer hides lower ones' files, None if it lacks the path.

    No symlink is followed: in an image it may lead anywhere.
    """
    opaque = False
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            above, place = place, os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(above)
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                return HIDDEN
            opaque = opaque or _is_opaque(place)
        status = os.stat(parts[-1], dir_fd=place, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return HIDDEN
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        with os.fdopen(file, "rb") as stream:
            return stream.read(MAX_BYTES)
    except FileNotFoundError:
        return HIDDEN if opaque else None
    except OSError:  # a whiteout or a symlink on the path, or a file that we may not read
        return HIDDEN
    finally:
        os.close(place)


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, OPAQUE) == b"y"
    except OSError:
        return False
