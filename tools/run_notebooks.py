"""Run notebooks on a cluster, write a report, and always clean up.

By default it creates a local cluster for the run, or several if cores and memory allow: then notebooks run in
parallel lanes. ``--provider eks`` or ``gke`` creates a cloud cluster, whose price must be confirmed.
``--provider existing`` uses the cluster of a kubeconfig, as a smoke test for platform engineers
(docs/smoke-test.md). It writes ``index.html``, ``result.json`` and ``junit.xml``, and ``bundle.tar.gz`` if a
notebook failed. The exit status is the result; the parts are in ``smoke``.
"""

import signal
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the imports below shows no traceback

import argparse
import logging
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from smoke import clusters, plan, thresholds
from smoke.lanes import Lanes, default_lanes, ready
from smoke.notebook_result import NotebookResult
from smoke.result import Outcome
from smoke.stopping import Stopping
from smoke.timeline import read_setup

from kitlib import config, plugins
from kitlib.errors import KitError
from kitlib.k8s import names
from trainyard_kit.cli.options import options_of

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CLUSTER, NODES = "trainyard-run", 4
RENTED = sorted(plugins.entries("kitlib.providers"))
LEFT_BEFORE = ("[0-9][0-9]_*.*", "index.html", "result.json", "junit.xml", "bundle.tar.gz")


def _environment(arguments: argparse.Namespace, run: str) -> dict[str, str]:
    """Return the environment variables that pass the command line's settings to the kit."""
    variables = {
        "TRAINYARD_WORKSHOP": run,
        "TRAINYARD_IMAGE": arguments.image,
        "TRAINYARD_STORAGE_CLASS": arguments.storage_class,
        "TRAINYARD_DATASET_MIRROR": arguments.mirror,
        "TRAINYARD_TOLERATIONS": arguments.tolerations,
        "KUBECONFIG": arguments.kubeconfig and str(Path(arguments.kubeconfig).expanduser().absolute()),
    }
    return {name: value for name, value in variables.items() if value}


def attempt(
    notebooks: Sequence[Path], outcome: Outcome, *, folder: Path, arguments: argparse.Namespace
) -> None:
    """Run the notebooks and clean up; record problems in ``outcome``."""
    stopping = Stopping(seconds=arguments.time_limit)
    planned = plan.chains([plan.read(path) for path in notebooks], lanes=arguments.lanes)
    sites = [_site(number, outcome.run, arguments, stopping) for number in range(1, arguments.lanes + 1)]
    lanes = Lanes(
        sites[: len(planned)],
        plan.Queue(planned, ready=ready),
        outcome,
        folder=folder,
        parameters=options_of(arguments.parameter),
        profile=arguments.profile,
        environment=_environment(arguments, outcome.run),
    )
    outcome.lanes = len(lanes.lanes)
    print(f"run {outcome.run}: {len(notebooks)} notebooks, {outcome.lanes} at once", flush=True)
    try:
        lanes.run(stopping)
    except KeyboardInterrupt:
        pass  # stopping.reason has the reason
    except KitError as error:
        outcome.error = str(error)
        print(error, flush=True)
    outcome.stopped = stopping.reason


def _site(
    number: int, run: str, arguments: argparse.Namespace, stopping: Stopping
) -> clusters.OwnCluster | clusters.RentedCluster | clusters.BorrowedNamespace:
    """Return the site of a lane's notebooks; nothing is created yet."""
    nodes = arguments.nodes or NODES
    if arguments.provider == "local":
        name = arguments.cluster if number == 1 else f"{arguments.cluster}-{number}"
        return clusters.OwnCluster(name, nodes, options_of(arguments.option))
    if arguments.provider in RENTED:
        options, image = options_of(arguments.option), arguments.image or config.read().image
        return clusters.RentedCluster(arguments.provider, arguments.cluster, nodes, options, image)
    return clusters.BorrowedNamespace(
        run,
        stopping,
        kubeconfig=arguments.kubeconfig,
        context=arguments.context,
        namespace=arguments.namespace,
        nodes=arguments.nodes,
    )


def find(prefixes: Sequence[str], folder: Path) -> list[Path]:
    """Return the notebooks whose names begin with one of ``words``; by default all."""
    notebooks = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    unknown = [prefix for prefix in prefixes if not any(_begins(path, prefix) for path in notebooks)]
    if unknown or not notebooks:
        names = ", ".join(path.stem for path in notebooks) or "none"
        sys.exit(f"there is no notebook {' or '.join(unknown)}; available: {names}")
    return [path for path in notebooks if not prefixes or any(_begins(path, prefix) for prefix in prefixes)]


def _begins(path: Path, prefix: str) -> bool:
    return path.name.startswith(Path(prefix).name)


def read_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's settings and thresholds; exit with 2 if one is invalid."""
    parser = argparse.ArgumentParser(description="Run notebooks on a cluster and write a report.")
    add = parser.add_argument
    add("notebooks", nargs="*", help="numbers or names; by default all")
    add("--folder", type=Path, default=NOTEBOOKS, help="the folder of the notebooks")
    add("--output", type=Path, default=ROOT / "reports")
    add("--provider", choices=("local", "existing", *RENTED), default="local")
    add("--cluster", default=CLUSTER, help="the name of the created cluster; it is deleted at the end")
    help_text = (
        "of the cluster: region=us-west-2 instance_type=g4dn.xlarge hours=2 confirm=true; local: gpus=1"
    )
    add("--option", action="append", default=[], metavar="NAME=VALUE", help=help_text)
    add(
        "--nodes",
        type=int,
        help="nodes of the created cluster, and number of training pods; default 4, or the notebook's",
    )
    add("--lanes", type=int, help="local: number of parallel notebooks, each lane on its own cluster")
    add("--kubeconfig", help="existing: by default $KUBECONFIG, or ~/.kube/config")
    add("--context", help="existing: one of the kubeconfig's contexts")
    add("--namespace", help="existing: the namespace to use; by default one is created if allowed")
    add("--image", help="of the training containers")
    add("--storage-class", help="of the volumes")
    add("--mirror", metavar="URL", help="of a folder with the data sets' files, tried before their sources")
    add("--tolerations", help="of the training pods: key=value:Effect …")
    add("--profile", help="parameters of each notebook: full, of notebooks/settings/full.toml")
    add("--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the notebooks")
    add("--time-limit", type=seconds, help="of the whole run: 90, 90s, 30m, 2h")
    for figure, unit in thresholds.FIGURES.items():
        add(f"--min-{figure.replace('_', '-')}", metavar="MIN", help=f"{unit}: 0.97, or 05=0.97 06=0.5")
    arguments = parser.parse_args(argv)
    try:
        arguments.thresholds = [
            threshold
            for figure in thresholds.FIGURES
            if (text := getattr(arguments, f"min_{figure}"))
            for threshold in thresholds.parse(figure, text)
        ]
        options_of(arguments.option), options_of(arguments.parameter)
        arguments.profile = read_profile(arguments.profile, arguments.folder)
        config.read(os.environ | _environment(arguments, "run"))
        arguments.lanes = _lanes(arguments)
    except (ValueError, KitError) as error:
        parser.error(str(error))
    return arguments


def read_profile(name: str | None, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the parameters of each notebook in ``settings/NAME.toml``; none without a name."""
    if name is None:
        return {}
    profiles = {path.stem: path for path in (folder / "settings").glob("*.toml")}
    profile = tomllib.loads(profiles[name].read_text("utf-8")) if name in profiles else {}
    if not profile or not all(isinstance(value, dict) for value in profile.values()):
        raise ValueError(f"--profile {name}: no such profile in {folder / 'settings'}; full is one")
    return profile


def _lanes(arguments: argparse.Namespace) -> int:
    lanes = default_lanes(arguments.provider) if arguments.lanes is None else arguments.lanes
    if lanes < 1 or (lanes > 1 and arguments.provider != "local"):
        raise ValueError(f"--lanes {lanes}: one, or more where the clusters are local")
    return lanes


def seconds(text: str) -> float:
    """Return a length of time in seconds.

    Example:
        >>> seconds("1.5h")
        5400.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: use 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def main() -> int:
    """Run, write the report, and print a summary."""
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
    attempt(notebooks, outcome, folder=folder, arguments=arguments)
    import report  # importing it takes longer than starting the first notebook

    executed = [path for path in notebooks if (folder / path.name).exists()]
    outcome.notebooks = [report.read(folder / path.name, original=path) for path in executed]
    outcome.thresholds = thresholds.evaluate(
        arguments.thresholds, {notebook.name: notebook.figures for notebook in outcome.notebooks}
    )
    outcome.seconds, outcome.setup = outcome.timeline.seconds, read_setup(folder)
    outcome.write(folder)
    index = report.write(outcome, folder=folder)
    for line in [*details(outcome), *summary(outcome)]:
        print(line)
    print(f"{outcome.verdict}: the report is {index}")
    return outcome.exit_code


def details(outcome: Outcome) -> list[str]:
    """Return for each failed notebook the state of its cluster and the Python error.

    They are printed last, because often only the end of a long output is kept.
    """
    failures = {notebook.name: notebook.failure for notebook in outcome.notebooks if notebook.failure}
    lines = []
    for name, text in outcome.briefs.items():
        lines += ["", f"== the cluster when {name} had failed", text]
        if name in failures:
            lines += [f"== {name}, cell {failures[name].cell}", failures[name].traceback, ""]
    return lines


def summary(outcome: Outcome) -> list[str]:
    """Return a line per notebook and threshold, and a summary."""
    executed = {notebook.name: notebook for notebook in outcome.notebooks}
    lines = []
    for name in outcome.planned:
        result = executed.get(name)
        lines.append(
            f"{name}: {result.verdict if result else 'not executed'}"
            + (f": {result.failure}" if result and result.failure else "")
            + _data(result)
        )
    lines += [
        f"threshold {'held' if threshold.held else 'missed'}: {threshold}" for threshold in outcome.thresholds
    ]
    count = f"{len(executed)} of {len(outcome.planned)} notebooks executed in {outcome.seconds:.0f} s"
    return [*lines, count]


def _data(result: NotebookResult | None) -> str:
    """Describe whether a notebook's data were real."""
    text = ", ".join(f"{name} {kind}" for name, kind in result.data.items()) if result else ""
    return f" ({text})" if text else ""


if __name__ == "__main__":
    sys.exit(main())
