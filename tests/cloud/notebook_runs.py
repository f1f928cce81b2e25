"""The course on a cluster at a simulated cloud: what ``make run`` runs, and the verdict on each notebook."""

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from trainyard_kit.container_images import engines

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3600


def run_course(folder: Path, behind: AbstractContextManager, *words: str) -> None:
    """Run the notebooks that ``TRAINYARD_CLOUD_NOTEBOOKS`` names, or all; each has to pass.

    Args:
        folder: For the executed notebooks.
        behind: Has a real cluster behind the one that is made.
        words: For ``tools/run_notebooks.py``: which cluster.
    """
    named = os.environ.get("TRAINYARD_CLOUD_NOTEBOOKS", "").split()
    command = [sys.executable, "tools/run_notebooks.py", *named, *words, "--output", str(folder)]
    with behind:
        done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=False)
        result = json.loads((folder / "result.json").read_text())
        seconds = {notebook["name"]: notebook["seconds"] for notebook in result["notebooks"]}
        print(", ".join(f"{name} {taken:.0f} s" for name, taken in seconds.items()), flush=True)
        verdicts = {notebook["name"]: notebook["verdict"] for notebook in result["notebooks"]}
        assert set(verdicts.values()) == {"passed"}, result["error"] or verdicts
        assert done.returncode == 0, result["error"] or result["verdict"]


def hide_engines(folder: Path, monkeypatch) -> None:
    """Let the cloud build: an engine here would pull the official image, of gigabytes, from the internet.

    Args:
        folder: An empty one.
        monkeypatch: pytest's.
    """
    for program in engines.PROGRAMS:
        (folder / program).write_text("#!/bin/sh\nexit 1\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def said(folder: Path, notebook: str, cell: str) -> str:
    """Return what the cell that contains some words printed."""
    (path,) = folder.glob(f"{notebook}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    (found,) = [item for item in cells if item["cell_type"] == "code" and cell in "".join(item["source"])]
    return "".join("".join(output.get("text", "")) for output in found["outputs"])
