"""Write the table of programs in docs/your-own.md from the list and the results of runs."""

import json
import os
from pathlib import Path

from .entries import HERE, ROOT, Entry, packages, read_list

PAGE = ROOT / "docs" / "your-own.md"
RESULTS = HERE / "results.json"
BEGIN, END = "<!-- programs: written by tests/programs -->\n", "<!-- end of programs -->"
COLUMNS = ("Program", "Launch", "Runs", "Tested as", "Seconds", "Notes")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n"


def record(entry: Entry, seconds: int) -> None:
    """Record that an entry ended as expected: as which user, and after how many seconds."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    tried_as = "plain" if os.environ.get("TRAINYARD_MODE") == "plain" else "user" if os.getuid() else "root"
    result = results.setdefault(entry.name, {"as": []})
    result |= {"as": sorted({*result["as"], tried_as}), "seconds": seconds}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def rows() -> str:
    """Format the table, with a row per program."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [_row(entry, results.get(entry.name)) for entry in read_list() if not entry.wait]
    return HEAD + "".join(sorted(lines))


def _row(entry: Entry, result: dict[str, object] | None) -> str:
    source = f"{entry.repository}: `{entry.path}`" if entry.repository else f"`tests/programs/{entry.path}`"
    installed = " ".join(package for package in packages().get(entry.environment, ()))
    needs = f"`{installed}`" if entry.ends == "with a package" else ""
    cells = (
        source,
        f"`{entry.command}`",
        "no" if entry.ends == "not" else entry.ends,
        ", ".join(result["as"]) if result else "",  # type: ignore[arg-type]
        str(result.get("seconds", "")) if result else "not tested",
        "; ".join(filter(None, [needs, entry.why])),
    )
    return f"| {' | '.join(cells)} |\n"


def write(page: Path = PAGE) -> None:
    """Write the table to the page."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    page.write_text(before + BEGIN + rows() + END + rest.split(END)[1], encoding="utf-8")
