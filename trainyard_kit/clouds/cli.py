"""``trainyard resources`` and ``extend``: resources at clouds, and a cluster's end."""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import click

from kitlib import clusters, config
from kitlib.errors import BadInput
from trainyard_kit.cli.options import CLUSTER_NAME, OPTION, OUTPUT, YES, ErrorGroup, combine, show


class Location(TypedDict):
    """The options of ``WHERE``."""

    provider: str | None
    regions: str | Sequence[str] | None
    profile: str | None
    project: str | None


WHERE = combine(
    click.option("--provider", help="eks or gke; by default both."),
    click.option(
        "--region",
        "regions",
        multiple=True,
        callback=lambda _, __, regions: "all" if "all" in regions else regions or None,
        help="A region of AWS; repeatable, or all.",
    ),
    click.option("--profile", help="A profile of your AWS configuration."),
    click.option("--project", help="A project of Google Cloud."),
)


@click.group(cls=ErrorGroup)
def resources() -> None:
    """List and delete the kit's resources at clouds, whoever created them."""


@resources.command("list")
@click.option("--cluster", "-c", help="Only what belongs to this cluster.")
@WHERE
@OUTPUT
def list_(cluster: str | None, output: str | None, **where: Unpack[Location]) -> None:
    """List the kit's resources at clouds, found by their tags, and the cost of its clusters."""
    from trainyard_kit.clouds.resources import costs, find, places, table

    places_asked, unanswered = places(**where)
    resources_table, sums = (
        table(*find(places_asked, unanswered, cluster=cluster)),
        costs(places_asked, budget=config.read().budget),
    )
    if output or len(sums):
        show(output, resources=resources_table, costs=sums)
    else:
        show(output, resources_table)


@resources.command()
@click.argument("names", metavar="[CLUSTER]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Select every cluster of the kit.")
@click.option("--yes", "confirm", is_flag=True, help="Delete them; without it they are only listed.")
@WHERE
def delete(names: tuple[str, ...], every: bool, confirm: bool, **where: Unpack[Location]) -> None:
    """Delete what belongs to each CLUSTER, also where the cluster itself is gone."""
    from trainyard_kit.clouds.resources import delete_resources

    if bool(names) == every:
        raise click.UsageError("name one cluster or several, or pass --all")
    left = delete_resources(clusters=names or None, dry_run=not confirm, confirm=confirm, **where)
    click.echo(left)
    if not confirm and len(left):
        click.echo("\nNothing was deleted. To delete all of this, add --yes", err=True)


@click.command()
@CLUSTER_NAME
@click.option("--hours", type=float, required=True, help="Hours from now.")
@click.option("--provider", help="The provider; by default any that this machine used for this name.")
@YES
@click.option("--budget", type=float, help="Dollars for all clusters there; by default TRAINYARD_BUDGET.")
@OPTION
def extend(
    name: str, hours: float, provider: str | None, confirm: bool, budget: float | None, option: dict[str, Any]
) -> None:
    """Set the expiry of the cluster NAME: the cloud deletes it that many hours from now.

    The price of the added hours is shown and must be confirmed.
    """
    from trainyard_kit.clouds.cluster import CloudCluster

    existing = clusters.connect(name, provider=provider, **option)
    if not isinstance(existing, CloudCluster):
        raise BadInput(
            f"a cluster of the provider {existing.provider} cannot be extended: it has no end",
            about=f'cluster "{name}"',
            fix="it stays until you delete it",
        )
    click.echo(existing.extend(hours=hours, confirm=confirm, budget=budget))
