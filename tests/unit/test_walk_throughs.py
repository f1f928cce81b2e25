"""`docs/walk-throughs.md`: each step names existing code cells, and tests that run them or its manifests."""

import ast
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from kitlib import jobs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walk-throughs.md"
COLUMNS = ["Step", "Code cell", "Manifest", "Result to be seen", "Test"]
CELL = re.compile(r"\[(\d\d) ([^]]+)\]\(\.\./notebooks/([^)#]+)\.ipynb#cell-id=([^)]+)\)")
TEST = re.compile(r"`(tests/[^:`]+)(?:::(\w+))?(?:\[(\w+)\])?`")
# They run a notebook as it is stored, the first of them the one in brackets.
RUNNERS = {
    "test_nbval_passes_a_notebook_that_keeps_the_cluster": None,
    "test_nbval_passes_cleaning_up_where_nothing_was_made_before": "13_clean_up",
}
# What sends the manifests of a folder, beside who names the file.
SENDERS = {each.folder: each.__name__ for each in vars(jobs).values() if getattr(each, "folder", None)}
SENDERS |= {"dataset": "prepare_dataset", "volume": "create_volume", "model-zoo": "zoo init"}


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
def code_cells(notebook):
    """Return by id the source of each code cell, and the heading above it."""
    found, heading = {}, ""
    for cell in nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            found[cell.id] = (heading, cell.source)
        else:
            heading = ([heading] + re.findall(r"^#+ (.+)$", cell.source, flags=re.M))[-1]
    return found


@cache
def definitions(path):
    """Return what a module defines at its top, by name."""
    found = {}
    for node in ast.parse((ROOT / path).read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            found |= {getattr(each, "name", getattr(each, "id", "")): node for each in names}
    return found


@cache
def source_of(path, name):
    """Return the source of a test with that of the fixtures, functions and constants that it uses."""
    folders = [each for each in Path(path).parents if each.name]
    files = [path, *(str(each / "conftest.py") for each in folders if (ROOT / each / "conftest.py").exists())]
    known, wanted, found = {}, [name], {}
    for each in reversed(files):
        known |= definitions(each)
    while wanted:
        one = wanted.pop()
        if one in known and one not in found:
            found[one] = ast.unparse(known[one])
            nodes = list(ast.walk(known[one]))
            wanted += [each.id for each in nodes if isinstance(each, ast.Name)]
            wanted += [each.arg for each in nodes if isinstance(each, ast.arg)]
    return "\n".join(found.values())


def refers(source, manifest):
    """Whether source names a manifest, or the class or function that sends it."""
    folder, file = Path(manifest).parts[-2:]
    named = (file, f"{Path(file).stem}'", f'{Path(file).stem}"', "*.yaml")
    whole = file == "kustomization.yaml" or any(each in source for each in named)
    return (folder in source and whole) or SENDERS.get(folder, "\0") in source


def test_each_of_the_five_walk_throughs_has_a_table():
    assert len(tables()) == 5


@pytest.mark.parametrize("row", ROWS)
def test_a_step_names_code_cells_in_their_sections(row):
    links = CELL.findall(row["Code cell"])
    assert links and len(links) == row["Code cell"].count("]("), row["Code cell"]
    for number, heading, notebook, cell in links:
        assert notebook.startswith(number)
        assert cell in code_cells(notebook), f"{notebook} has no code cell {cell}"
        assert code_cells(notebook)[cell][0] == heading, f"{cell} is in another section of {notebook}"


@pytest.mark.parametrize("row", ROWS)
def test_the_notebooks_of_a_step_are_run_as_they_are_shipped(row):
    run = {RUNNERS[name] or shown for _, name, shown in TEST.findall(row["Test"]) if name in RUNNERS}
    assert run == {notebook for _, _, notebook, _ in CELL.findall(row["Code cell"])}
    assert row["Result to be seen"]


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_step_exist_and_its_manifests_are_in_what_they_run(row):
    """A test refers to a manifest, or runs a notebook that does."""
    sources = []
    for path, name, _ in TEST.findall(row["Test"]):
        assert name in definitions(path), f"{path} has no test {name!r}"
        if name not in RUNNERS:
            sources.append(source_of(path, name))
    for _, _, notebook, _ in CELL.findall(row["Code cell"]):
        sources.append("\n".join(source for _, source in code_cells(notebook).values()))
    for each in re.findall(r"`([^`]+)`", row["Manifest"]):
        assert (ROOT / each).exists(), each
        assert any(refers(source, each) for source in sources), f"no test and no code cell refers to {each}"
