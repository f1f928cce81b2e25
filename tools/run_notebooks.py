"""Run the notebooks on a local cluster of their own, write a report, delete the cluster whatever happened.

Each notebook is executed in a process (``execute_notebook.py``); this one keeps the signals, the cluster and
the report. It ends with 1 and the names of the cells that failed, and with 130 where it was interrupted.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CLUSTER = "trainyard-run"
NODES = 4
PATIENCE = 30  # seconds that an interrupted notebook has to shut its kernel down


async def call(*command: str) -> int:
    """Run a command and return its exit status; if cancelled, end it first.

    In a session of its own: Ctrl-C at the terminal reaches this program alone, which decides what happens.
    """
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, start_new_session=True)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except TimeoutError:
                process.kill()


def kit(*arguments: str) -> tuple[str, ...]:
    """Return the command line of the kit in this environment."""
    return (sys.executable, "-m", "kitlib.cli", *arguments)


async def run_all(notebooks: list[Path], *, folder: Path, cluster: str) -> int:
    """Create the cluster and execute every notebook, also after one has failed; return the worst status."""
    print(f"cluster: {NODES} nodes; a few seconds elsewhere", flush=True)
    if await call(*kit("cluster", "create", cluster, "--nodes", str(NODES))):
        return 1
    worst = 0
    for number, notebook in enumerate(notebooks, 1):
        print(f"notebook {number} of {len(notebooks)}: {notebook.name}", flush=True)
        script = str(Path(__file__).with_name("execute_notebook.py"))
        output = str(folder / notebook.name)
        status = await call(sys.executable, script, str(notebook), output, f"cluster_name={cluster}")
        worst = max(worst, status)
    return worst


async def with_cluster(notebooks: list[Path], *, folder: Path, cluster: str) -> int:
    """Run the notebooks; delete the cluster on success, failure, Ctrl-C and SIGTERM alike."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await run_all(notebooks, folder=folder, cluster=cluster)
    except asyncio.CancelledError:
        print("interrupted", flush=True)
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: print("the cluster is being deleted already", flush=True))
        print("cluster: deleting it", flush=True)
        await call(*kit("cluster", "delete", cluster))


def find(names: list[str], folder: Path) -> list[Path]:
    """Return the notebooks whose names begin with one of ``names``; all of them where none is given."""
    everything = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    chosen = [
        path for path in everything if not names or any(path.name.startswith(Path(n).name) for n in names)
    ]
    if not chosen:
        sys.exit(
            f"no notebook is called {' or '.join(names)}; there are {', '.join(p.stem for p in everything)}"
        )
    return chosen


def main() -> int:
    """Run, report, and say in the last line what came of it."""
    parser = argparse.ArgumentParser(description="Run notebooks on a local cluster and write a report.")
    parser.add_argument("notebooks", nargs="*", help="numbers or names; all of them if none is given")
    parser.add_argument("--folder", type=Path, default=NOTEBOOKS, help="where the notebooks are")
    parser.add_argument("--output", type=Path, default=ROOT / "reports")
    parser.add_argument("--cluster", default=CLUSTER, help="the cluster's name; it is deleted at the end")
    arguments = parser.parse_args()
    notebooks, folder = find(arguments.notebooks, arguments.folder), arguments.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("[0-9][0-9]_*.*"), folder / "index.html"]:
        old.unlink(missing_ok=True)

    began = time.monotonic()
    status = asyncio.run(with_cluster(notebooks, folder=folder, cluster=arguments.cluster))
    executed = [path for path in notebooks if (folder / path.name).exists()]
    results = [report.read(folder / path.name, original=path) for path in executed]
    seconds = time.monotonic() - began
    index = report.write(results, folder=folder, seconds=seconds, planned=len(notebooks))
    for result in results:
        print(f"{result.name}: {result.verdict}" + (f": {result.failure}" if result.failure else ""))
    for path in notebooks:
        if path not in executed:
            print(f"{path.stem}: not executed")
    print(f"{len(results)} of {len(notebooks)} notebooks executed in {seconds:.0f} s; the report is {index}")
    passed = len(results) == len(notebooks) and all(result.verdict == "passed" for result in results)
    return status or (0 if passed else 1)


if __name__ == "__main__":
    sys.exit(main())
