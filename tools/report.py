"""Write executed notebooks as HTML, with an index of durations, results and failures.

All information comes from the executed notebooks, so a report can be written again. ``run_notebooks.py``
executes them.
"""

import ast
import contextlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from smoke.notebook_result import CellFailure, NotebookResult, Picture
from smoke.result import Outcome
from smoke.timeline import NOTEBOOK, WAITING, Span

HERE = Path(__file__).parent
WIDTH, ROW, NARROW = 1000, 44, 22  # of the chart of lanes; narrower bars have no text
TICKS, MAX_TICKS = (10, 30, 60, 120, 300, 600), 10  # seconds between two ticks
PICTURE_TAG = "result-picture"
FALSE_CAUSES = "trainyard_false_causes"  # in the metadata, by execute_notebook.py
DATA = re.compile(r"^dataset ([\w-]+): (SYNTHETIC|real)", re.MULTILINE)  # of kit.prepare_dataset
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# The value of a cell with one of these tags is a number, or a dict of numbers by these names, which may also
# have ``synthetic``.
FIGURE_TAGS = {
    "result-accuracy": "accuracy",
    "result-images-per-s": "images_per_s",
    "result-allreduce": "allreduce_mb_per_s",
}


def read(executed: Path, *, original: Path) -> NotebookResult:
    """Read the results in ``executed``; ``original`` numbers the cells.

    Example:
        >>> read(Path("reports/00_start.ipynb"), original=Path("notebooks/00_start.ipynb")).verdict
        'passed'
    """
    notebook = nbformat.read(executed, as_version=4)
    numbers = {cell.id: number for number, cell in enumerate(nbformat.read(original, as_version=4).cells, 1)}
    cells = [cell for cell in notebook.cells if cell.id in numbers]
    code = [cell for cell in cells if cell.cell_type == "code"]
    heading = cells[0].source.strip().splitlines()
    return NotebookResult(
        name=original.stem,
        title=heading[0].lstrip("# "),
        goal=next((line.strip() for line in heading[1:] if line.strip()), ""),
        seconds=notebook.metadata.get("papermill", {}).get("duration") or 0.0,
        figures=_figures(code),
        synthetic=_synthetic(code),
        failure=next((failure for cell in code if (failure := _failure(cell, numbers[cell.id]))), None)
        or _false_cause(notebook, len(numbers)),
        finished=all(_executed(cell) for cell in code),
        pictures=tuple(picture for cell in code for picture in _pictures(cell)),
        data=_data(code),
    )


def _executed(cell: NotebookNode) -> bool:
    """Return whether a cell completed; papermill also marks cells that a dead kernel never ran."""
    completed = cell.metadata.get("papermill", {}).get("status") == "completed"
    return completed and (cell.execution_count is not None or not cell.source.strip())


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _failure(cell: NotebookNode, number: int) -> CellFailure | None:
    source = (cell.source.strip().splitlines() or [""])[0]
    for output in cell.outputs:
        if output.output_type == "error":
            if (output.ename, output.evalue) == ("SystemExit", "0"):  # papermill treats it as success
                return None
            error = f"{output.ename}: {output.evalue}".strip()
            return CellFailure(number, source, error, COLOURS.sub("", "\n".join(output.traceback)))
    if cell.metadata.get("papermill", {}).get("status") in {"running", "failed"}:
        return CellFailure(number, source, "did not finish")
    return None


def _false_cause(notebook: NotebookNode, last: int) -> CellFailure | None:
    """Return the false cause that was reported for a succeeded run."""
    causes = notebook.metadata.get(FALSE_CAUSES, [])
    return CellFailure(last, "run.why()", "; ".join(causes)) if causes else None


def _values(code: list[NotebookNode]) -> Iterator[tuple[set[str], Any]]:
    """Yield the values of cells that have figures, with the figures' names."""
    for cell in code:
        names = {FIGURE_TAGS[tag] for tag in FIGURE_TAGS.keys() & set(_tags(cell))}
        for output in cell.outputs if names else []:
            if output.output_type == "execute_result":
                with contextlib.suppress(ValueError, SyntaxError):
                    yield names, ast.literal_eval(output.data["text/plain"])


def _figures(code: list[NotebookNode]) -> dict[str, float]:
    figures = {}
    for names, value in _values(code):
        for name in names:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                figures[name] = float(value[name]) if isinstance(value, dict) else float(value)
    return figures


def _synthetic(code: list[NotebookNode]) -> bool:
    return any(isinstance(value, dict) and value.get("synthetic") for _, value in _values(code))


def _data(code: list[NotebookNode]) -> dict[str, str]:
    """Return for each dataset whether its images were real; scikit-learn's digits are."""
    texts = [
        output.get("text") or output.get("data", {}).get("text/plain") or ""
        for cell in code
        for output in cell.outputs
    ]
    digits = {"digits": "real"} if any("trainers/digits_" in cell.source for cell in code) else {}
    return digits | {name: kind.lower() for text in texts for name, kind in DATA.findall(text)}


def _pictures(cell: NotebookNode) -> list[Picture]:
    if PICTURE_TAG not in _tags(cell):
        return []
    images = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
    text = cell.metadata.get("trainyard", {}).get("alt", cell.source)
    return [Picture("".join(data.split()), text) for data in images]


def _described(path: Path) -> NotebookNode:
    """Return an executed notebook whose pictures have alternative texts."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        text = cell.metadata.get("trainyard", {}).get("alt") or f"Drawn by: {cell.source.strip()}"
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.metadata.setdefault("image/png", {}).setdefault("alt", text)
    return notebook


@dataclass(frozen=True)
class Bar:
    """One span in the picture of the lanes: its position in the picture's units, and its label."""

    left: float
    width: float
    top: float
    style: str
    text: str
    title: str


@dataclass(frozen=True)
class Chart:
    """The timeline with a row per lane, 1,000 units wide, for the template."""

    lanes: range
    height: float
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]


def chart(outcome: Outcome) -> Chart | None:
    """Return the picture of a run's timeline; None if nothing ran."""
    spans = outcome.timeline.spans
    if not spans:
        return None
    total = max(span.start + span.seconds for span in spans)
    scale = WIDTH / max(total, 1)
    verdicts = {result.name: result.verdict for result in outcome.notebooks}
    bars = []
    for span in spans:
        text = span.name.partition("_")[0] if span.kind == NOTEBOOK else ""
        style = verdicts.get(span.name, "not finished").partition(" ")[0] if text else span.kind
        width = span.seconds * scale
        if width < NARROW:
            text = ""
        title = f"{_label(span)}: {clock(span.seconds)}, from {clock(span.start)}"
        bars.append(Bar(span.start * scale, width, (span.lane - 1) * ROW, style, text, title))
    tick = next(step for step in TICKS if total / step <= MAX_TICKS or step == TICKS[-1])
    ticks = tuple((at * scale, clock(at)) for at in range(0, int(total) + 1, tick))
    lanes = range(1, max(span.lane for span in spans) + 1)
    return Chart(lanes, len(lanes) * ROW, tuple(bars), ticks)


def _label(span: Span) -> str:
    return f"waiting for {span.name}" if span.kind == WAITING else span.name


def clock(seconds: float) -> str:
    """Return a length of time in minutes and seconds.

    Example:
        >>> clock(83.4)
        '1:23'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def write(outcome: Outcome, *, folder: Path) -> Path:
    """Write the notebooks' pages and ``index.html`` into ``folder``; return the index's path.

    Args:
        outcome: The results of a run (``smoke.result.Outcome``).
        folder: The folder of executed notebooks.
    """
    exporter = HTMLExporter(
        template_name="lab",
        template_file=str(HERE / "notebook.html.j2"),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    for result in outcome.notebooks:
        named = {"metadata": {"name": result.name}}
        page, _ = exporter.from_notebook_node(_described(folder / f"{result.name}.ipynb"), resources=named)
        page = re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', page)
        (folder / f"{result.name}.html").write_text(page, encoding="utf-8")
    environment = exporter.environment.overlay(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"clock": clock, "what": _label}
    template = environment.get_template("report.html.j2")
    results = {result.name: result for result in outcome.notebooks}
    index = folder / "index.html"
    page = template.render(
        outcome=outcome,
        chart=chart(outcome),
        spans=sorted(outcome.timeline.spans, key=lambda span: span.start),
        rows=[(name, results.get(name)) for name in outcome.planned],
        passed=sum(result.verdict == "passed" for result in outcome.notebooks),
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}",
        date=outcome.began.replace("T", " ").replace("+00:00", " UTC"),
    )
    index.write_text(page, encoding="utf-8")
    return index
