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
    click.option("--cpus", "cpu", help="Cores that the pods of each may request together."),
    click.option("--memory", help="Memory that they may request together, such as 4Gi."),
    click.option("--pods", type=int, help="Number of pods that each may have."),
    click.option("--gpus", type=int, help="Number of GPUs that each may have."),
    click.option("--hours", default=12.0, show_default=True, help="Hours for which the kubeconfigs work."),
    click.option("--jupyter", is_flag=True, help="Run a JupyterLab in a pod for each."),
    click.option("--own-cluster", is_flag=True, help="With --jupyter: room in that pod for a local cluster."),
    click.option("--image", help="Image of JupyterLab, with the kit in /kit; a local cluster needs none."),
    click.option("--host", help="Names below it lead to the cluster's Ingress; NAME.HOST is a JupyterLab."),
)
FOLDER = Path("reports", "rehearsal")


@click.group(cls=ErrorGroup)
def workshop() -> None:
    """Prepare a workshop, watch it, and delete it."""


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call: those that were given, with what concerns JupyterLab as one."""
    values = {key: value for key, value in options.items() if value is not None}
    jupyter, own_cluster = values.pop("jupyter"), values.pop("own_cluster")
    pod = {key: values.pop(key) for key in ("image", "host") if key in values}
    notebook_server = verbs.Jupyter(**pod, own_cluster=own_cluster) if jupyter or own_cluster or pod else None
    return values | {"jupyter": notebook_server}


@workshop.command()
@click.argument("attendees", nargs=-1, required=True)
@CLUSTER
@click.option("--dataset", "datasets", multiple=True, help="A dataset to prepare for all; repeatable.")
@click.option("--scale", is_flag=True, help="Add the nodes that are missing; it shows their price and asks.")
@YES
@QUOTA
def create(attendees: tuple[str, ...], **options: object) -> None:
    """Create a namespace for each of ATTENDEES: a number, such as 30, or their names."""
    many = int(attendees[0]) if len(attendees) == 1 and attendees[0].isdigit() else attendees
    click.echo(verbs.create(many, **_given(options)))


@workshop.command()
@click.argument("name")
@CLUSTER
@QUOTA
def add(name: str, **options: object) -> None:
    """Create a namespace for NAME, and print the path of a kubeconfig for that namespace alone."""
    attendee = verbs.add(name, **_given(options))
    click.echo(attendee.kubeconfig)
    click.echo(f"It works until {attendee.expires}. Anyone who has the file can use it.", err=True)


@workshop.command()
@CLUSTER
@OUTPUT
def status(cluster: str, output: str | None) -> None:
    """Show the notebook and cell of each attendee, and pods that fail and why."""
    show(output, verbs.status(cluster=cluster))
    on = connect(cluster)
    for line in on.overload():
        click.echo(f"short of {line}", err=True)
    for line in held_namespaces(on.kube):
        click.echo(line, err=True)


@workshop.command()
@CLUSTER
def delete(cluster: str) -> None:
    """Delete the namespaces of all attendees; the cluster is kept."""
    verbs.delete(cluster=cluster)
    click.echo("no attendees are left")


@workshop.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "--provider", default="local", show_default=True, help="local, or existing: a cluster you have."
)
@click.option("--kubeconfig", type=click.Path(exists=True), help="For existing: by default kubectl's own.")
@click.option("--nodes", type=int, help="Number of nodes, or of pods that train.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
@click.option("--attendees", type=int, help="Check --cluster for this number instead; no notebook is run.")
@NAMED_CLUSTER
@click.option("--dataset", "datasets", multiple=True, help="A dataset to prepare for them; repeatable.")
@click.option("--hours", default=4.0, show_default=True, help="Hours that they stay, for the price.")
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
    """Run NOTEBOOKS once, by default all, and print how long each took; exit status 1 if one did not pass.

    With --attendees, check instead that a cluster is ready for a workshop of many: capacity, images on the
    nodes, datasets, one training run, and the price.
    """
    if attendees is not None:
        tried = rehearsal.rehearse(
            attendees, cluster=cluster or default_cluster(), datasets=datasets, hours=hours
        )
        click.echo(tried)
        sys.exit(0 if rehearsal.ready(tried) else 1)
    flags = {"--provider": provider, "--kubeconfig": kubeconfig, "--nodes": nodes}
    options = [word for name, value in flags.items() if value for word in (name, str(value))]
    outcome = notebook_rehearsal.rehearse(notebooks, folder=folder.absolute(), options=options)
    click.echo(outcome.table)
    place = f"; kept in {folder / notebook_rehearsal.KEPT}" if outcome.whole else ""
    click.echo(f"\nCompare with docs/instructors-guide.md{place}", err=True)
    sys.exit(0 if outcome.passed else 1)


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
        fix = f"the attendees are: {', '.join(known) or 'none'}"
        raise BadInput(
            "there is no such attendee", about=f'attendee "{name}" of cluster "{cluster}"', fix=fix
        )
    verbs.remove(name, cluster=cluster)
    click.echo(f"attendee {name} is removed")


@click.command()
@click.argument("notebook", default="")
@click.option("--all", "every", is_flag=True, help="Reset all notebooks.")
@CLUSTER
def reset(notebook: str, every: bool, cluster: str) -> None:
    """Delete what NOTEBOOK, such as 05, created in the cluster; the cluster is kept."""
    if bool(notebook) == every:
        raise click.UsageError("name one notebook, such as 05, or pass --all")
    click.echo(verbs.reset(notebook, cluster=cluster))
