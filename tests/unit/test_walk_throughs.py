"""`docs/walk-throughs.md`: every published command has a row, ours can be typed, and each step is tested."""

import ast
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import click
import nbformat
import pytest

from kitlib import jobs
from trainyard_kit.cli.main import main as trainyard
from trainyard_kit.elasticdl.commands import main as elasticdl

from ..walk_throughs import tables
from ..walk_throughs.pages import PAGES, blocks

ROOT = Path(__file__).parents[2]
STEPS = tomllib.loads((ROOT / "tests" / "walk_throughs" / "steps.toml").read_text(encoding="utf-8"))["step"]
LINK = re.compile(r"\[(\d\d)\]\(\.\./notebooks/([^)#]+)\.ipynb#cell-id=([^)]+)\)")
# What sends the manifests of a folder, beside who names the file.
SENDERS = {kind.folder: kind.__name__ for kind in vars(jobs).values() if getattr(kind, "folder", None)}
SENDERS |= {
    "parameter-server": "ParameterServer",
    "dataset": "prepare_dataset",
    "volume": "create_volume",
    "model-zoo": "zoo init",
}
ROWS = [pytest.param(row, id=f"{title}: {row[0]}") for title, rows in tables.tables().items() for row in rows]


@cache
def code_cells(notebook):
    """Return by id the source of each code cell, and of each that has commands to be typed."""
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells
    return {cell.id: cell.source for cell in cells if cell.cell_type == "code" or "```bash" in cell.source}


@cache
def definitions(path):
    """Return what a module defines at its top, by name."""
    nodes_by_name = {}
    for node in ast.parse((ROOT / path).read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            nodes_by_name |= {getattr(name, "name", getattr(name, "id", "")): node for name in names}
    return nodes_by_name


@cache
def source_of(path, name):
    """Return the source of a test with that of the fixtures, functions and constants that it uses."""
    folders = [parent for parent in Path(path).parents if parent.name]
    files = [path, *(str(up / "conftest.py") for up in folders if (ROOT / up / "conftest.py").exists())]
    known, pending, sources = {}, [name], {}
    for file in reversed(files):
        known |= definitions(file)
    while pending:
        name_of_node = pending.pop()
        if name_of_node in known and name_of_node not in sources:
            sources[name_of_node] = ast.unparse(known[name_of_node])
            nodes = list(ast.walk(known[name_of_node]))
            pending += [node.id for node in nodes if isinstance(node, ast.Name)]
            pending += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return "\n".join(sources.values())


def refers(source, manifest):
    """Whether source names a manifest, or the class or function that sends it."""
    folder, file = Path(manifest).parts[-2:]
    named = (file, f"{Path(file).stem}'", f'{Path(file).stem}"', "*.yaml")
    whole = file == "kustomization.yaml" or any(name in source for name in named)
    return (folder in source and whole) or SENDERS.get(folder, "\0") in source


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step['page']}: {step['step']}")
def test_the_cells_and_tests_of_a_step_exist_and_its_manifests_are_in_what_they_run(step):
    """A test refers to a manifest, or runs a notebook that does."""
    sources = []
    for path, _, name in (test.partition("::") for test in step.get("tests", [])):
        assert name in definitions(path), f"{path} has no test {name!r}"
        sources.append(source_of(path, name))
        if path == "tests/walk_throughs/test_tables.py":  # it runs the document's commands
            sources.append(tables.DOCUMENT.read_text(encoding="utf-8"))
    for notebook, _, cell in (place.partition("#") for place in step["cells"]):
        assert cell in code_cells(notebook), f"{notebook} has no code cell {cell}"
        sources.append("\n".join(code_cells(notebook).values()))
    for manifest in step.get("manifests", []):
        assert (ROOT / manifest).exists(), manifest
        assert any(refers(source, manifest) for source in sources), f"nothing refers to {manifest}"


def published_commands(page):
    """List the first lines of the commands that a page's blocks show, or of the EKS workshop its scripts."""
    if page.startswith("eks"):
        return blocks(page, "console")
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", "").splitlines()
    words = (line.removeprefix("$ ") for line in lines if not line.startswith((" ", "\t")))
    starts = ("gcloud", "eksctl", "docker", "kubectl", "elasticdl", "cat", "sed", "pip")
    return [line for line in words if line.startswith(starts)]


@pytest.mark.parametrize("title", tables.PAGES)
def test_every_command_of_a_published_page_has_a_row_in_its_order(title):
    theirs = [code for row in tables.tables()[title] for code in tables.codes(row[0])]
    commands = [line for line in published_commands(tables.PAGES[title]) if not line.startswith("cd ")]
    without = [line for line in commands if not any(line.strip().startswith(code) for code in theirs)]
    assert not without
    if title.startswith("EKS"):
        assert theirs == [line.strip() for line in commands] and len(theirs) == 24


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_a_code_cell(row):
    links = LINK.findall(row[2])
    assert links and len(links) == row[2].count("](")
    for number, notebook, cell in links:
        assert notebook.startswith(number) and cell in code_cells(notebook)


def check_command(program, words):
    """Parse the words of a program of ours, as click does before it runs it."""
    command = program
    while isinstance(command, click.Group) and (words or not command.invoke_without_command):
        _, command, words = command.resolve_command(click.Context(command), list(words))
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("row", ROWS)
def test_our_commands_of_a_row_can_be_typed(row):
    ways = ({"cloud": False}, {"cloud": True}, {"cloud": False, "quick": True})
    commands = dict.fromkeys(command for way in ways for command in tables.ours(row[1], **way))
    assert commands or row[1].startswith(("the same", "the published command"))
    subprocess.run(["bash", "-n", "-c", "\n".join(commands)], check=True)
    for command in commands:
        for place in re.findall(r"\b(?:manifests|trainers|programs)/[\w./-]*", command):
            assert (ROOT / place).exists(), place
        program, *words = shlex.split(command)
        if program in ("trainyard", "elasticdl") and "NAME" not in words:
            check_command({"trainyard": trainyard, "elasticdl": elasticdl}[program], words)


def test_the_pages_of_all_tables_are_kept():
    assert {f"{page}.md" for page in tables.PAGES.values()} | {"README.md"} == {
        path.name for path in PAGES.iterdir()
    }
