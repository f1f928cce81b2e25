"""Notebooks made in code, and the program that runs notebooks, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[2]
PROVIDER = 'provider = "local"\ncluster_name = "trainyard"\nnodes = 4\noptions = {}'


@pytest.fixture
def make_notebook(tmp_path):
    """Write a notebook of the given cells of code, behind a heading and parameters, and return its path.

    ``tags`` has the tags of cells by their number in the notebook, from 1.
    """

    def make(name, *sources, tags=None):
        cells = [new_markdown_cell(f"# {name}\n\nMade by a test."), new_code_cell(PROVIDER)]
        cells[1].metadata["tags"] = ["parameters"]
        cells += [new_code_cell(source) for source in sources]
        for number, tag in (tags or {}).items():
            cells[number - 1].metadata["tags"] = [tag]
        kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
        notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return path

    return make


@pytest.fixture
def runner(state_home, tmp_path):
    """Return the command line of ``tools/run_notebooks.py``, its report in a folder of this test."""

    def command(*arguments):
        script = str(ROOT / "tools" / "run_notebooks.py")
        return [sys.executable, script, "--output", str(tmp_path / "reports"), *arguments]

    return command


@pytest.fixture(scope="session")
def finish(state_home):
    """Return a function that runs a command to its end, out and err in one."""

    def run(command, *, timeout, env=None, **options):
        try:
            return subprocess.run(
                command,
                cwd=ROOT,
                env=env or os.environ,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
                **options,
            )
        except subprocess.TimeoutExpired as error:  # whose words do not say how far it had come
            output = (error.output or b"").decode(errors="replace")
            pytest.fail(f"not done after {timeout} s: {command}\n{output}", pytrace=False)

    return run
