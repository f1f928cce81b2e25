"""The course on a cluster at a simulated cloud: the program of ``make run``, and what came of each notebook.

A machine of several tenants stalls at times. So a notebook that failed is executed once more by its name, on
a cluster made anew, as continuous integration does on the local one; and pytest's warnings list it.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kitlib.container_images import engines

from ..unit.container_registry import PASSWORD, serve_registry

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3600


def run_course(folder: Path, behind: Callable[[], AbstractContextManager], *words: str) -> None:
    """Run the notebooks that ``TRAINYARD_CLOUD_NOTEBOOKS`` names, or all; each has to pass.

    Args:
        folder: For the executed notebooks.
        behind: Has a new real cluster behind the one that is made: one that was deleted is empty.
        words: For ``tools/run_notebooks.py``: which cluster.
    """
    named = os.environ.get("TRAINYARD_CLOUD_NOTEBOOKS", "").split()
    with behind():
        again = _failed(folder, *named, *words)
    if again:
        warnings.warn(f"RERUN of {', '.join(again)}: failed at the first attempt", stacklevel=2)
        with behind():
            assert not _failed(folder, *again, *words), "failed twice"


def _failed(folder: Path, *words: str) -> list[str]:
    """Run; return the notebooks that failed. One that did not get as far is no matter of a busy machine."""
    command = [sys.executable, "tools/run_notebooks.py", *words, "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=False)
    result = json.loads((folder / "result.json").read_text())
    seconds = {each["name"]: each["seconds"] for each in result["notebooks"]}
    print(", ".join(f"{name} {taken:.0f} s" for name, taken in seconds.items()), flush=True)
    verdicts = {each["name"]: each["verdict"] for each in result["notebooks"]}
    assert set(verdicts.values()) <= {"passed", "failed"}, result["error"] or verdicts
    failed = [name for name, verdict in verdicts.items() if verdict == "failed"]
    assert failed or done.returncode == 0, result["error"] or result["verdict"]
    return failed


@contextmanager
def registry_or_none(folder: Path, monkeypatch) -> Iterator[str]:
    """Yield the address of a real registry where something can be pushed to it; else an empty text.

    An engine that has nowhere to push to then does not answer, so that the cloud builds.

    Args:
        folder: An empty one.
        monkeypatch: pytest's.
    """
    if engines.find() and shutil.which("docker-registry"):
        with serve_registry(folder, password=PASSWORD) as address:
            yield address
        return
    for each in engines.PROGRAMS:
        (folder / each).write_text("#!/bin/sh\nexit 1\n")
        (folder / each).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield ""


def said(folder: Path, notebook: str, cell: str) -> str:
    """Return what the cell that contains some words printed."""
    (path,) = folder.glob(f"{notebook}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    (found,) = [each for each in cells if each["cell_type"] == "code" and cell in "".join(each["source"])]
    return "".join("".join(each.get("text", "")) for each in found["outputs"])
