"""The table of images as a listing: stand-ins, their limits, and whether they are installed."""

import sys
from pathlib import Path
from typing import Any

from localkube.controlplane import binaries
from localkube.errors import LocalClusterError
from localkube.kubelet.images.image_programs import ProgramNotFound, Programs
from localkube.kubelet.images.image_table import UNKNOWN, StandIn, table


def rows() -> list[dict[str, Any]]:
    """List a row for each entry, in the order in which they are tried; the last is for all other images."""
    programs = Programs(_control_plane())
    return [
        {
            "image": ", ".join(entry.match) or "any other",
            "tags": " ".join(entry.tags),
            "stand_in": entry.shown,
            "state": _state(entry, programs),
            "cannot": entry.cannot,
        }
        for entry in (*table(), UNKNOWN)
    ]


HEAD = "| Image | Tags | What stands in | What it cannot do |"


def document() -> str:
    """Format the machine-independent columns as Markdown, for the documentation."""
    lines = [HEAD, "| --- | --- | --- | --- |"]
    for entry in (*table(), UNKNOWN):
        images = ", ".join(f"`{pattern}`" for pattern in entry.match) or "any other"
        tags = "any" if entry.tags == ("*",) else ", ".join(f"`{tag}`" for tag in entry.tags)
        lines.append(f"| {images} | {tags} | {entry.shown} | {entry.cannot or '-'} |")
    return "\n".join(lines) + "\n"


def _state(entry: StandIn, programs: Programs) -> str:
    if not entry.program:
        return "ready"
    try:
        return f"ready, from {programs.find(entry.program).origin}"
    except ProgramNotFound as missing:
        return str(missing)


def _control_plane() -> dict[str, tuple[str, ...]]:
    """Find the control plane's programs, if they are here already; nothing is downloaded."""
    try:
        return dict(binaries.present().programs)
    except LocalClusterError:
        return {}


def write(path: Path) -> None:
    """Replace the table in the file ``path``, or append it."""
    before, _, table_on = path.read_text(encoding="utf-8").partition(HEAD)
    after = table_on.partition("\n\n")[2]
    path.write_text(f"{before}{document()}" + (f"\n{after}" if after else ""), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
