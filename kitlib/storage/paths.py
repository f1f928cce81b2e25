"""Where things lie on a volume, and the parts of a tar stream that may be unpacked. Pure."""

import posixpath
from collections.abc import Iterable
from datetime import UTC, datetime

from kitlib.display.tables import Table, age
from kitlib.errors import BadInput
from kitlib.k8s.quantities import format_bytes

OWN = ".trainyard"  # what is being made, and not to be seen
STAGING = f"{OWN}-upload-"


def inside(path: object, *, what: str = "path") -> str:
    """Return a path on a volume, relative to its root, which is "".

    Raises:
        BadInput: It leads out of the volume, or is no text.

    Example:
        >>> inside("/cifar10//train/")
        'cifar10/train'
    """
    text = str(path)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not isinstance(path, str) or ".." in parts or "\0" in text or "\n" in text:
        raise BadInput(
            "this leads to no place on the volume",
            about=f"{what}={path!r}",
            fix=f'paths begin at the root of the volume: {what}="cifar10/train"',
        )
    return "/".join(parts)


def target(name: str, to: object) -> str:
    """Return where something called ``name`` is to lie: at ``to``, or in it where that ends with a slash."""
    place = inside(to, what="to")
    return posixpath.join(place, name) if not place or str(to).endswith("/") else place


def listing(lines: Iterable[str], *, empty: str) -> Table:
    """Return the table of a folder, from lines of type, size, time and name between tabs."""
    rows = []
    for line in lines:
        kind, size, seconds, name = line.split("\t", 3)
        if not posixpath.basename(name).startswith(OWN):
            modified = datetime.fromtimestamp(int(seconds), UTC).isoformat()
            shown = format_bytes(int(size)) if kind.startswith("regular") else None
            kind = "file" if kind.startswith("regular") else kind  # GNU tells of empty files
            rows.append((name.removeprefix("./"), kind, shown, age(modified)))
    return Table(("name", "kind", "size", "age"), sorted(rows), empty=empty)
