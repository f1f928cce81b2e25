"""``trainyard workshop`` and ``trainyard reset``: the instructor's commands."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kitlib.clusters import connect
from kitlib.errors import BadInput
from kitlib.k8s.terminating import held_namespaces
from trainyard_kit import workshop as verbs
from trainyard_kit.cli.current import default_cluster
from trainyard_kit.cli.options import (
    CLUSTER,
    IGNORE_NOT_FOUND,
    NAMED_CLUSTER,
    OUTPUT,
    YES,
    ErrorGroup,
    combine,
    show,
)
from trainyard_kit.workshop import notebook_rehearsal, rehearsal

QUOTA = combine(
    click.option("--cpus", "cpu", help="Quota of CPU requests per attendee, in cores."),
    click.option("--memory", help="Quota of memory requests per attendee, such as 4Gi."),
    click.option("--pods", type=int, help="Quota of pods per attendee."),
    click.option("--gpus", type=int, help="Quota of GPUs per attendee."),
    click.option(
        "--hours", default=12.0, show_default=True, help="Hours for which the kubeconfigs are valid."
    ),
    click.option("--jupyter", is_flag=True, help="Run a JupyterLab pod for each attendee."),
    click.option(
        "--own-cluster", is_flag=True, help="With --jupyter: resources in that pod for a local cluster."
    ),
    click.option("--image", help="Image of JupyterLab, with the kit in /kit; not needed on a local cluster."),
    click.option("--host", help="Domain of the cluster's Ingress: a JupyterLab is at NAME.HOST."),
)
FOLDER = Path("reports", "rehearsal")


@click.group(cls=ErrorGroup)
def workshop() -> None:
    """Prepare a workshop, watch it, and delete it."""


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Build the arguments of a call from the options that are set; JupyterLab's become one argument."""
    values = {key: value for key, value in options.items() if value is not None}
    jupyter, own_cluster = values.pop("jupyter"), values.pop("own_cluster")
    pod = {key: values.pop(key) for key in ("image", "host") if key in values}
    notebook_server = verbs.Jupyter(**pod, own_cluster=own_cluster) if jupyter or own_cluster or pod else None
    return values | {"jupyter": notebook_server}


@workshop.command()
@click.argument("attendees", nargs=-1, required=True)
@CLUSTER
@click.option("--dataset", "datasets", multiple=True, help="A dataset to prepare for all; repeatable.")
@click.option("--scale", is_flag=True, help="Add missing nodes after confirmation of the cost.")
@YES
@QUOTA
def create(attendees: tuple[str, ...], **options: object) -> None:
    """Create a namespace for each of ATTENDEES: a number, such as 30, or their names."""
    requested = int(attendees[0]) if len(attendees) == 1 and attendees[0].isdigit() else attendees
    click.echo(verbs.create(requested, **_arguments(options)))


@workshop.command()
@click.argument("name")
@CLUSTER
@QUOTA
def add(name: str, **options: object) -> None:
    """Create a namespace for NAME, and print the path of a kubeconfig for only that namespace."""
    attendee = verbs.add(name, **_arguments(options))
    click.echo(attendee.kubeconfig)
    click.echo(f"It is valid until {attendee.expires}. Anyone who has the file can use it.", err=True)


@workshop.command()
@CLUSTER
@OUTPUT
def status(cluster: str, output: str | None) -> None:
    """Show each attendee's notebook and cell, and failing pods with the reason."""
    show(output, verbs.status(cluster=cluster))
    workshop_cluster = connect(cluster)
    for line in workshop_cluster.overload():
        click.echo(f"short of {line}", err=True)
    for line in held_namespaces(workshop_cluster.kube):
        click.echo(line, err=True)


@workshop.command()
@CLUSTER
def delete(cluster: str) -> None:
    """Delete the namespaces of all attendees; the cluster is kept."""
    verbs.delete(cluster=cluster)
    click.echo("all attendees are deleted")


@workshop.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--provider", default="local", show_default=True, help="local, or existing for your own cluster."
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True),
    help="Kubeconfig of an existing cluster; by default kubectl's own.",
)
@click.option("--nodes", type=int, help="Number of nodes, or of training pods.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
@click.option("--attendees", type=int, help="Check --cluster for this number of attendees; run no notebook.")
@NAMED_CLUSTER
@click.option("--dataset", "datasets", multiple=True, help="A dataset to prepare for them; repeatable.")
@click.option(
    "--hours", default=4.0, show_default=True, help="Duration of the workshop in hours, for the cost."
)
def rehearse(
    notebooks: tuple[str, ...],
    provider: str,
    kubeconfig: str | None,
    nodes: int | None,
    folder: Path,
    attendees: int | None,
    cluster: str | None,
    datasets: tuple[str, ...],
    hours: float,
) -> None:
    """Run NOTEBOOKS once, by default all, and print their durations; exit status 1 if one failed.

    With --attendees, check instead whether a cluster is ready for a large workshop: capacity, images on
    the nodes, datasets, one training run, and cost.
    """
    if attendees is not None:
        cluster = cluster or default_cluster()
        report = rehearsal.rehearse(attendees, cluster=cluster, datasets=datasets, hours=hours)
        click.echo(report)
        sys.exit(0 if rehearsal.ready(report) else 1)
    flags = {"--provider": provider, "--kubeconfig": kubeconfig, "--nodes": nodes}
    options = [argument for flag, value in flags.items() if value for argument in (flag, str(value))]
    result = notebook_rehearsal.rehearse(notebooks, folder=folder.absolute(), options=options)
    click.echo(result.table)
    saved = f"; saved in {folder / notebook_rehearsal.TIMES_FILE}" if result.complete else ""
    click.echo(f"\nCompare with the time in the first cell of each notebook{saved}", err=True)
    sys.exit(0 if result.passed else 1)


@workshop.command("list")
@CLUSTER
@OUTPUT
def list_attendees(cluster: str, output: str | None) -> None:
    """List the attendees of a cluster."""
    show(output, verbs.list_attendees(cluster=cluster))


@workshop.command()
@click.argument("name")
@CLUSTER
@IGNORE_NOT_FOUND
def remove(name: str, cluster: str, ignore_not_found: bool) -> None:
    """Delete the namespace of NAME and its contents."""
    known = [str(row["attendee"]) for row in verbs.list_attendees(cluster=cluster)]
    if name not in known:
        if ignore_not_found:
            return
        about, fix = f'attendee "{name}" of cluster "{cluster}"', f"one of: {', '.join(known) or 'none'}"
        raise BadInput("there is no such attendee", about=about, fix=fix)
    verbs.remove(name, cluster=cluster)
    click.echo(f"attendee {name} is removed")


@click.command()
@click.argument("notebook", default="")
@click.option("--all", "all_notebooks", is_flag=True, help="Reset all notebooks.")
@CLUSTER
def reset(notebook: str, all_notebooks: bool, cluster: str) -> None:
    """Delete what NOTEBOOK, such as 05, created in the cluster; the cluster is kept."""
    if bool(notebook) == all_notebooks:
        raise click.UsageError("name one notebook, such as 05, or pass --all")
    click.echo(verbs.reset(notebook, cluster=cluster))
