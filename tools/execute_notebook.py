"""Execute one notebook with papermill in a separate process, and report the current cell.

Folded solutions are executed as well (``solutions.py``). It is a separate process because nbclient replaces
the signal handlers of its process; so the caller, ``run_notebooks.py``, keeps its own and can always clean
up.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import smoke  # noqa: F401 (it disables a slow import of papermill's)
from smoke.good_runs import GoodRuns

# isort: split
import nbformat
import papermill
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io
from solutions import unfold
from traitlets.config import Config

START_SECONDS, CELL_SECONDS = 300, 600
FALSE_CAUSES = "trainyard_false_causes"  # in the metadata of an executed notebook


class ReportingEngine(NBClientEngine):
    """papermill's own engine, which prints a labelled line when a code cell starts.

    Before a cell that deletes, ``why()`` is called on succeeded runs: any cause is false, and is stored in
    the notebook's metadata.
    """

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        *,
        label: str = "",
        good_runs: GoodRuns | None = None,
        **options: object,
    ) -> object:
        """Execute the notebook that ``nb_man`` holds."""
        run_start, cells, start = time.monotonic(), nb_man.nb.cells, nb_man.cell_start

        def report_cell(cell: NotebookNode, *args: object, **kwargs: object) -> object:
            if good_runs and cell.cell_type == "code" and "delete" in cell.source:
                good_runs.check()
                nb_man.nb.metadata |= {FALSE_CAUSES: good_runs.false_causes} if good_runs.false_causes else {}
            if cell.cell_type == "code" and cell.source.strip():
                minutes, seconds = divmod(int(time.monotonic() - run_start), 60)
                first = cell.source.strip().splitlines()[0]
                number = f"{cells.index(cell) + 1}/{len(cells)}"
                print(f"{label}  {minutes}:{seconds:02d}  cell {number:<6} {first[:84]}", flush=True)
            return start(cell, *args, **kwargs)

        nb_man.cell_start = report_cell
        return super().execute_managed_notebook(nb_man, kernel_name, **options)


class WholeFiles(LocalHandler):
    """papermill's handler of local files, which replaces a file in one step.

    papermill writes the notebook after each cell; an interrupted write would leave a partial file.
    """

    def write(self, buf: str, path: str) -> None:
        """Write ``buf`` to a temporary file and rename it to ``path``."""
        beside = f"{path}.partial"
        super().write(buf, beside)
        Path(beside).replace(path)


def execute(
    notebook: Path,
    output: Path,
    parameters: dict[str, object],
    *,
    label: str = "",
    cell_seconds: int = CELL_SECONDS,
    good_runs: GoodRuns | None = None,
) -> int:
    """Write the executed notebook to ``output``; return 1 if a cell failed or a good run has a cause, else 0.

    Its output lines begin with ``label``, as several notebooks may run at once.
    """
    papermill_engines.register("telling", ReportingEngine)
    papermill_io.register(os.fspath(output.parent), WholeFiles())
    try:
        # Unix sockets in a private folder, not ports: by default they are in the notebook's folder, which
        # may belong to another user.
        with tempfile.TemporaryDirectory(prefix="ty-kernel-") as sockets:
            executed = papermill.execute_notebook(
                unfold(nbformat.read(notebook, as_version=4)),
                output,
                parameters=parameters,
                engine_name="telling",
                label=label,
                good_runs=good_runs,
                kernel_name="python3",
                cwd=notebook.parent,
                progress_bar=False,
                start_timeout=START_SECONDS,
                execution_timeout=cell_seconds,
                config=Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/socket"}),
            )
    except PapermillExecutionError as error:
        print(f"{label}  {notebook.name}: {error.ename}: {error.evalue}", file=sys.stderr)
        return 1
    false_causes = executed.metadata.get(FALSE_CAUSES, [])
    if good_runs and good_runs.checked:
        print(f"{label}  why() was checked for {len(good_runs.checked)} succeeded runs", flush=True)
    for cause in false_causes:
        print(f"{label}  {notebook.name}: {cause}", file=sys.stderr)
    return int(bool(false_causes))


def main() -> int:
    """Read the command line: ``execute_notebook.py IN OUT name=value …`` (values are JSON)."""
    parser = argparse.ArgumentParser(description="Execute one notebook.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--label", default="", help="the prefix of output lines")
    parser.add_argument("--cell-seconds", type=int, default=CELL_SECONDS, help="the time limit of a cell")
    parser.add_argument("parameters", nargs="*", metavar="name=value")
    arguments = parser.parse_args()
    pairs = (text.split("=", 1) for text in arguments.parameters)
    parameters = {name: json.loads(value) for name, value in pairs}
    return execute(
        arguments.notebook.absolute(),
        arguments.output.absolute(),
        parameters,
        label=arguments.label,
        cell_seconds=arguments.cell_seconds,
        good_runs=GoodRuns(str(parameters["cluster_name"])) if "cluster_name" in parameters else None,
    )


if __name__ == "__main__":
    sys.exit(main())
