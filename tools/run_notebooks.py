"""Run notebooks on a cluster, write a report, and delete what was made, whatever happened.

By default the cluster is a local one that lives as long as the run; with ``--provider eks`` or ``gke`` it is
one at a cloud, which costs money, and is asked for before. With ``--provider existing`` it is any that a
kubeconfig leads to: a platform engineer's smoke test (docs/smoke-test.md). The report is
``index.html`` for people, ``result.json`` and ``junit.xml`` for programs, and ``bundle.tar.gz`` where a
notebook failed. The exit status says what came of it; the parts are in ``smoke``.
"""

import argparse
import json
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import report
from smoke import clusters, thresholds
from smoke.brief import brief
from smoke.bundle import Bundle
from smoke.execution import execute
from smoke.result import Outcome
from smoke.stopping import TIME_LIMIT, Stopping

from kitlib import names, settings
from kitlib.clusters import Cluster
from kitlib.errors import KitError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CLUSTER, NODES = "trainyard-run", 4
RENTED = ("eks", "gke")
LEFT_BEFORE = ("[0-9][0-9]_*.*", "index.html", "result.json", "junit.xml", "bundle.tar.gz")


def run(notebooks: Sequence[Path], site, outcome: Outcome, *, folder: Path, arguments, stopping) -> None:
    """Execute every notebook, also after one has failed; keep what is needed to find out why one did."""
    print(f"run {outcome.run}: {len(notebooks)} notebooks", flush=True)
    cluster = site.open()
    outcome.cluster = clusters.facts(cluster)
    bundle = Bundle(cluster.kubeconfig)
    environment = _environment(arguments, outcome.run)
    try:
        for number, notebook in enumerate(notebooks, 1):
            print(f"notebook {number} of {len(notebooks)}: {notebook.name}", flush=True)
            output, offer = folder / notebook.name, site.offer() | dict(arguments.parameter)
            try:
                status = execute(
                    notebook, output, parameters=offer, environment=environment, stopping=stopping
                )
            except KeyboardInterrupt:
                if stopping.reason == TIME_LIMIT:
                    _collect(bundle, cluster, notebook, outcome)
                raise
            if status:
                _collect(bundle, cluster, notebook, outcome)
    finally:
        saved = bundle.save(folder / "bundle.tar.gz")
        outcome.bundle = saved and saved.name


def _collect(bundle: Bundle, cluster: Cluster, notebook: Path, outcome: Outcome) -> None:
    print("  collecting events, logs and manifests", flush=True)
    outcome.briefs[notebook.stem] = bundle.clean(brief(cluster))
    bundle.collect(cluster, part=notebook.stem)


def _environment(arguments: argparse.Namespace, run: str) -> dict[str, str]:
    """Return the variables by which the kit in a notebook learns what the command line says."""
    given = {
        "TRAINYARD_WORKSHOP": run,
        "TRAINYARD_IMAGE": arguments.image,
        "TRAINYARD_STORAGE_CLASS": arguments.storage_class,
        "TRAINYARD_TOLERATIONS": arguments.tolerations,
        "KUBECONFIG": arguments.kubeconfig and str(Path(arguments.kubeconfig).expanduser().absolute()),
    }
    return {name: value for name, value in given.items() if value}


def attempt(notebooks: Sequence[Path], outcome: Outcome, *, folder: Path, arguments) -> None:
    """Run the notebooks and clean up; note in ``outcome`` what came between."""
    stopping = Stopping(seconds=arguments.time_limit)
    if arguments.provider == "local":
        site = clusters.OwnCluster(arguments.cluster, nodes=arguments.nodes or NODES)
    elif arguments.provider in RENTED:
        nodes = arguments.nodes or NODES
        site = clusters.RentedCluster(arguments.provider, arguments.cluster, nodes, dict(arguments.option))
    else:
        site = clusters.BorrowedNamespace(
            outcome.run,
            stopping,
            kubeconfig=arguments.kubeconfig,
            context=arguments.context,
            namespace=arguments.namespace,
            nodes=arguments.nodes,
        )
    try:
        try:
            run(notebooks, site, outcome, folder=folder, arguments=arguments, stopping=stopping)
        finally:
            with stopping.held():
                if stopping.reason:
                    print(stopping.reason, flush=True)
                print("cleaning up", flush=True)
                site.close()
    except KeyboardInterrupt:
        pass  # the reason is known
    except KitError as error:
        outcome.error = str(error)
        print(error, flush=True)
    outcome.stopped = stopping.reason


def find(words: Sequence[str], folder: Path) -> list[Path]:
    """Return the notebooks whose names begin with one of ``words``; all of them where none is given."""
    everything = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    unknown = [word for word in words if not any(_begins(path, word) for path in everything)]
    if unknown or not everything:
        known = ", ".join(path.stem for path in everything) or "none"
        sys.exit(f"no notebook is called {' or '.join(unknown)}; there are {known}")
    return [path for path in everything if not words or any(_begins(path, word) for word in words)]


def _begins(path: Path, word: str) -> bool:
    return path.name.startswith(Path(word).name)


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's settings, thresholds included; exit with 2 where one cannot be used."""
    parser = argparse.ArgumentParser(description="Run notebooks on a cluster and write a report.")
    add = parser.add_argument
    add("notebooks", nargs="*", help="numbers or names; all of them if none is given")
    add("--folder", type=Path, default=NOTEBOOKS, help="where the notebooks are")
    add("--output", type=Path, default=ROOT / "reports")
    add("--provider", choices=("local", "existing", *RENTED), default="local")
    add("--cluster", default=CLUSTER, help="its name, unless it exists; it is deleted at the end")
    help_text = "eks, gke: of the cluster: region=us-west-2 instance_type=g4dn.xlarge hours=2 confirm=true"
    add("--option", action="append", default=[], type=_pair, metavar="NAME=VALUE", help=help_text)
    add("--nodes", type=int, help="nodes of its own cluster, and how many pods train; 4, or the notebook's")
    add("--kubeconfig", help="existing: by default $KUBECONFIG, or ~/.kube/config")
    add("--context", help="existing: one of the kubeconfig's contexts")
    add("--namespace", help="existing: where to work; by default one is made where that is allowed")
    add("--image", help="of the training containers")
    add("--storage-class", help="of the volumes")
    add("--tolerations", help="of the training pods: key=value:Effect …")
    add("--parameter", action="append", default=[], type=_pair, metavar="NAME=VALUE", help="of the notebooks")
    add("--time-limit", type=seconds, help="of the whole run: 90, 90s, 30m, 2h")
    for figure, unit in thresholds.FIGURES.items():
        add(f"--min-{figure.replace('_', '-')}", metavar="LEAST", help=f"{unit}: 0.97, or 05=0.97 06=0.5")
    arguments = parser.parse_args(words)
    try:
        arguments.thresholds = [
            each
            for figure in thresholds.FIGURES
            if (text := getattr(arguments, f"min_{figure}"))
            for each in thresholds.parse(figure, text)
        ]
        settings.read(os.environ | _environment(arguments, "run"))
    except (ValueError, KitError) as error:
        parser.error(str(error))
    return arguments


def seconds(text: str) -> float:
    """Return a length of time in seconds.

    Example:
        >>> seconds("1.5h")
        5400.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time: say 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _pair(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> int:
    """Run, report, and say in the last lines what came of it."""
    arguments = read_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    notebooks, folder = find(arguments.notebooks, arguments.folder), arguments.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (path for pattern in LEFT_BEFORE for path in folder.glob(pattern)):
        old.unlink()

    outcome = Outcome(
        run=names.unique("run"),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        planned=[path.stem for path in notebooks],
        time_limit=arguments.time_limit,
    )
    began = time.monotonic()
    attempt(notebooks, outcome, folder=folder, arguments=arguments)
    executed = [path for path in notebooks if (folder / path.name).exists()]
    outcome.notebooks = [report.read(folder / path.name, original=path) for path in executed]
    outcome.thresholds = thresholds.judge(
        arguments.thresholds, {each.name: each.figures for each in outcome.notebooks}
    )
    outcome.seconds = time.monotonic() - began
    outcome.write(folder)
    index = report.write(outcome, folder=folder)
    for line in [*details(outcome), *summary(outcome)]:
        print(line)
    print(f"{outcome.verdict}: the report is {index}")
    return outcome.exit_code


def details(outcome: Outcome) -> list[str]:
    """Return for each notebook that failed how its cluster was then, and below it what Python said.

    At the end, since of a long output often only that is kept.
    """
    failures = {each.name: each.failure for each in outcome.notebooks if each.failure}
    lines = []
    for name, text in outcome.briefs.items():
        lines += ["", f"== the cluster when {name} had failed", text]
        if name in failures:
            lines += [f"== {name}, cell {failures[name].cell}", failures[name].traceback, ""]
    return lines


def summary(outcome: Outcome) -> list[str]:
    """Return a line for each notebook and for each threshold, and one for the whole."""
    done = {each.name: each for each in outcome.notebooks}
    lines = []
    for name in outcome.planned:
        each = done.get(name)
        lines.append(
            f"{name}: {each.verdict if each else 'not executed'}"
            + (f": {each.failure}" if each and each.failure else "")
        )
    lines += [f"threshold {'held' if each.held else 'missed'}: {each}" for each in outcome.thresholds]
    count = f"{len(done)} of {len(outcome.planned)} notebooks executed in {outcome.seconds:.0f} s"
    return [*lines, count]


if __name__ == "__main__":
    sys.exit(main())
