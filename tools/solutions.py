"""Fold the solutions of notebooks: a stored solution is a Markdown cell whose ``<details>`` has its code.

GitHub and nbviewer can only fold Markdown, and *Run all* leaves the exercises to the learner. Tests of
notebooks execute solutions instead of exercises: `unfold` converts them to code cells with the same ids and
tags, and `fold` is its inverse. A solution's output is below its code, and is compared if the cell is tagged.
"""

import re

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

SOLUTION = "solution"
FOLDED = "<details><summary>Solution</summary>\n\n```python\n{}\n```\n{}\n</details>"
PRINTED = "\nIt prints:\n\n```text\n{}\n```\n"
CODE = re.compile(r"```python\n(.*?)\n```\n", re.DOTALL)
TEXT = re.compile(r"\nIt prints:\n\n```text\n(.*?)\n```\n", re.DOTALL)
PROGRESS = re.compile(r"(?:kit\.check|run [\w-]+): .*")  # lines that the kit displays rather than prints


def is_solution(cell: NotebookNode) -> bool:
    """Check whether a cell is tagged as a solution."""
    return SOLUTION in cell.metadata.get("tags", [])


def unfold(notebook: NotebookNode) -> NotebookNode:
    """Convert folded solutions to code cells, in place; return the notebook."""
    notebook.cells = [
        _code(cell) if is_solution(cell) and cell.cell_type == "markdown" else cell for cell in notebook.cells
    ]
    return notebook


def fold(notebook: NotebookNode) -> NotebookNode:
    """Convert solutions to Markdown cells with their output, in place; return the notebook."""
    notebook.cells = [
        _markdown(cell) if is_solution(cell) and cell.cell_type == "code" else cell for cell in notebook.cells
    ]
    return notebook


def _code(cell: NotebookNode) -> NotebookNode:
    source, printed = CODE.search(cell.source), TEXT.search(cell.source)
    if source is None:
        raise ValueError(f"cell {cell.id} is a solution without code")
    outputs = _outputs(printed[1]) if printed else []
    return new_code_cell(
        source[1],
        id=cell.id,
        metadata={"tags": cell.metadata.tags, "jupyter": {"source_hidden": True}},
        outputs=outputs,
        execution_count=1 if outputs else None,
    )


def _outputs(text: str) -> list[NotebookNode]:
    """Convert a text to outputs: display data first, then the printed text."""
    lines = text.splitlines(keepends=True)
    displayed = [line.rstrip("\n") for line in lines if PROGRESS.match(line)]
    rest = "".join(line for line in lines if not PROGRESS.match(line))
    outputs = [
        new_output("display_data", {"text/html": f"<code>{line}</code>", "text/plain": line})
        for line in displayed
    ]
    return [*outputs, new_output("stream", name="stdout", text=f"{rest}\n")]


def _markdown(cell: NotebookNode) -> NotebookNode:
    printed = "".join(_text(output) for output in cell.outputs).strip("\n")
    below = PRINTED.format(printed) if printed else ""
    return new_markdown_cell(
        FOLDED.format(cell.source, below), id=cell.id, metadata={"tags": cell.metadata.tags}
    )


def _text(output: NotebookNode) -> str:
    data = output.get("data", {})
    text = output.get("text") or ("" if "image/png" in data else data.get("text/plain", ""))
    return f"{text}".rstrip("\n") + "\n" if text else ""
