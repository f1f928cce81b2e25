"""Write the table of causes in docs/why.md from the rows that tests provoke: tests/cluster/causes/*.yaml.

Example:
    .venv/bin/python tools/why_docs.py
"""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE, ROWS = ROOT / "docs" / "why.md", ROOT / "tests" / "cluster" / "causes"
BEGIN, END = "<!-- causes: begin -->", "<!-- causes: end -->"
HEAD = "| Cause | What kubectl shows | `why` says | What to do, in short |\n| --- | --- | --- | --- |"


def page(text: str) -> str:
    """Write the table between the page's markers."""
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def table() -> str:
    """Build a row per cause, under the heading in the first line of its file."""
    sections = []
    for file in sorted(ROWS.glob("*.yaml")):
        rows = yaml.safe_load(file.read_text())
        lines = [
            f"| {row['cause']} | {row['looks']} | {_message(row)} | {_cell(row['do'])} |" for row in rows
        ]
        sections.append(f"### {file.stem.capitalize()}: {len(rows)}\n\n" + "\n".join([HEAD, *lines]))
    return "\n\n".join(sections)


def _message(row: dict[str, str]) -> str:
    return f"`{row['kind']}`: {_cell(row['who'])} … {_cell(row['says'])}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
