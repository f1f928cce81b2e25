"""`docs/walk-throughs.md` names sections, manifests and tests: all are there, and no step is without them."""

import ast
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walk-throughs.md"
COLUMNS = ["Step", "Section", "Manifest", "Result to be seen", "Test"]


def tables():
    """Return for each walk-through the rows of its table, as dicts by column."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        title, *lines = part.splitlines()
        table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
        rows = [[cell.strip() for cell in row] for row in table]
        if rows and rows[0] == COLUMNS:
            found[title] = [dict(zip(COLUMNS, row, strict=True)) for row in rows[2:]]
    return found


ROWS = [pytest.param(row, id=f"{title}: {row['Step']}") for title, rows in tables().items() for row in rows]


@cache
def headings(name):
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"^#+ (.+)$", text, flags=re.M)


@cache
def functions(path):
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}


def test_each_of_the_five_walk_throughs_has_a_table():
    assert len(tables()) == 5


@pytest.mark.parametrize("row", ROWS)
def test_what_a_step_names_is_there(row):
    for text, name in re.findall(r"\[([^]]+)\]\(\.\./notebooks/([^)]+)\)", row["Section"]):
        heading = text.split(" ", 1)[1]
        assert heading in headings(name), f"{name} has no section {heading!r}: it has {headings(name)}"
    for path in re.findall(r"`([^`]+)`", row["Manifest"]):
        assert (ROOT / path).exists(), path
    for path, name in re.findall(r"`(tests/[^:`]+)(?:::(\w+))?`", row["Test"]):
        assert (ROOT / path).exists(), path
        assert not name or name in functions(path), f"{path} has no {name}"


@pytest.mark.parametrize("row", ROWS)
def test_no_step_is_without_a_section_a_result_and_a_test(row):
    assert "notebooks/" in row["Section"], row
    assert row["Result to be seen"], row
    assert "tests/" in row["Test"], row
