"""Store outputs in the course's notebooks, so that GitHub shows what a learner sees.

    .venv/bin/python tools/run_notebooks.py 05 && .venv/bin/python tools/store_outputs.py 05

Outputs are text, HTML and pictures of at most 256 colours; live widgets are stored as their last picture.
Names of this machine's folders, its user and the run's cluster are replaced. The metadata has a digest of the
executed cells, with which ``tests/unit/test_hygiene.py`` rejects outputs of other sources.
"""

import argparse
import base64
import hashlib
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image
from run_notebooks import NOTEBOOKS, ROOT, find
from solutions import fold, unfold

TYPES = ("image/png", "image/svg+xml", "text/html", "text/markdown", "text/plain")
COLOURS, MAX_BYTES = 256, 500_000  # of a picture; of a stored notebook
USER, COURSE = "/home/you", "trainyard"  # the name of the course's cluster
PLACES = (
    (re.compile(re.escape(str(ROOT))), f"{USER}/trainyard-kit"),
    (re.compile(re.escape(sys.base_prefix)), "/usr"),
    (re.compile(re.escape(str(Path.home())) + r"(?=[/\s'\"<]|$)"), USER),
    (re.compile(r"/tmp/(?:trainyard-run-|tmp)\w+"), "/tmp"),
    (re.compile(r"\btmp\w{8}\b"), "tmp"),
    (re.compile(r"(owner: )\w+"), r"\1you"),
    (re.compile(r"(workshop: )run-\w+"), rf"\1{COURSE}"),
    (re.compile(r"\d{8}T\d{6}Z"), "…"),
)


def digest(notebook: NotebookNode) -> str:
    """Hash the sources of code cells and solutions, without the set-up of hosted notebooks."""
    cells = (cell for cell in unfold(notebook).cells if cell.cell_type == "code")
    sources = [cell.source for cell in cells if "hosted" not in cell.metadata.get("tags", ())]
    return hashlib.sha256("\n\n".join(sources).encode()).hexdigest()[:16]


def store(notebook: Path, executed: Path) -> int:
    """Write the outputs of ``executed`` to ``notebook``; return its size in bytes.

    Raises:
        ValueError: A cell differs, was not executed or ended in an error, or the notebook is too large.
    """
    stored = unfold(nbformat.read(notebook, as_version=4))
    run = {cell.id: cell for cell in nbformat.read(executed, as_version=4).cells}
    cluster = next((name for cell in run.values() if (name := _cluster(cell))), COURSE)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell_run = run.get(cell.id)
        if cell_run is None or cell_run.source != cell.source or cell_run.execution_count is None:
            raise ValueError(f"{cell.id} of {executed} differs or was not executed: run it again")
        cell.outputs = [
            cleaned
            for output in cell_run.outputs
            if (cleaned := _output(output, number, cluster, cell.id)) is not None
        ]
        cell.execution_count = number
    stored.metadata.trainyard["executed"] = digest(stored)
    text = nbformat.writes(fold(stored)) + "\n"
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"{notebook.name} has {len(text.encode())} bytes with outputs, above {MAX_BYTES}")
    notebook.write_text(text, encoding="utf-8")
    return len(text.encode())


def _cluster(cell: NotebookNode) -> str:
    """Return the name of the cluster in the parameters cell."""
    injected = "injected-parameters" in cell.metadata.get("tags", [])
    name = re.search(r'^cluster_name = "(.+)"', cell.source, re.MULTILINE) if injected else None
    return name[1] if name else ""


def _output(output: NotebookNode, number: int, cluster: str, cell: str) -> NotebookNode | None:
    if output.output_type == "error":
        raise ValueError(f"{cell} ended in an error: {output.evalue}")
    if output.output_type == "stream":
        return NotebookNode(output | {"text": _public(output.text, cluster)})
    data = {kind: _public(value, cluster) for kind, value in output.data.items() if kind in TYPES}
    if "application/vnd.jupyter.widget-view+json" in output.data and "image/png" not in data:
        data.pop("text/plain", None)  # the widget's name
    if "image/png" in data:
        data["image/png"] = _smaller(output.data["image/png"])
    if not data:
        return None
    count = {"execution_count": number} if output.output_type == "execute_result" else {}
    return NotebookNode(output | {"data": NotebookNode(data), "metadata": NotebookNode()} | count)


def _public(text: str, cluster: str) -> str:
    for pattern, replacement in PLACES:
        text = pattern.sub(replacement, text)
    return re.sub(rf"\b{re.escape(cluster)}\b", "trainyard", text)


def _smaller(png: str) -> str:
    """Reduce a picture to 256 colours."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture, io.BytesIO() as smaller:
        white = Image.new("RGB", picture.size, "white")
        white.paste(picture, mask=picture.convert("RGBA").getchannel("A"))
        white.quantize(COLOURS).save(smaller, "PNG", optimize=True)
        return base64.b64encode(smaller.getvalue()).decode()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Store the outputs of executed notebooks.")
    parser.add_argument("notebooks", nargs="*", help="numbers or names; by default all executed ones")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports", help="of tools/run_notebooks.py")
    arguments = parser.parse_args(argv)
    for path in find(arguments.notebooks, NOTEBOOKS):
        executed = arguments.reports / path.name
        if executed.exists() or arguments.notebooks:
            print(f"{path.stem}: {store(path, executed):,} bytes")


if __name__ == "__main__":
    main()
