"""``trainyard resources`` and ``extend``: the kit's cloud resources, and a cluster's expiry."""

from typing import TYPE_CHECKING, Any, Unpack

import click

from kitlib import clusters, config
from kitlib.errors import BadInput
from trainyard_kit.cli.options import CLUSTER_NAME, OPTION, OUTPUT, YES, ErrorGroup, combine, show

if TYPE_CHECKING:
    from trainyard_kit.clouds.provider import SearchScope

LOCATION = combine(
    click.option("--provider", help="A cloud, such as eks; by default all."),
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
    """List and delete the kit's cloud resources, whoever created them."""


@resources.command("list")
@click.option("--cluster", "-c", help="Only what belongs to this cluster.")
@LOCATION
@OUTPUT
def list_(
    cluster: str | None, output: str | None, provider: str | None, **scope: "Unpack[SearchScope]"
) -> None:
    """List the kit's cloud resources, identified by their tags, and what its clusters cost."""
    from trainyard_kit.clouds.resources import costs, find, resolve_places, table

    places, failures = resolve_places(provider, **scope)
    resources_table = table(*find(places, failures, cluster=cluster))
    costs_table = costs(places, budget=config.read().budget)
    if output or len(costs_table):
        show(output, resources=resources_table, costs=costs_table)
    else:
        show(output, resources_table)


@resources.command()
@click.argument("names", metavar="[CLUSTER]...", nargs=-1)
@click.option("--all", "all_clusters", is_flag=True, help="Select all clusters of the kit.")
@click.option("--yes", "confirm", is_flag=True, help="Delete them; without this they are only listed.")
@LOCATION
def delete(
    names: tuple[str, ...],
    all_clusters: bool,
    confirm: bool,
    provider: str | None,
    **scope: "Unpack[SearchScope]",
) -> None:
    """Delete all resources of each CLUSTER, even if the cluster itself is gone."""
    from trainyard_kit.clouds.resources import delete_resources

    if bool(names) == all_clusters:
        raise click.UsageError("name one cluster or several, or pass --all")
    remaining = delete_resources(
        provider, clusters=names or None, dry_run=not confirm, confirm=confirm, **scope
    )
    click.echo(remaining)
    if not confirm and len(remaining):
        click.echo("\nNothing was deleted. To delete these resources, add --yes", err=True)


@click.command()
@CLUSTER_NAME
@click.option("--hours", type=float, required=True, help="Hours from now.")
@click.option("--provider", help="The provider; by default the one that this machine used for this name.")
@YES
@click.option(
    "--budget",
    type=float,
    help="Limit in dollars for all clusters of the account; by default TRAINYARD_BUDGET.",
)
@OPTION
def extend(
    name: str, hours: float, provider: str | None, confirm: bool, budget: float | None, option: dict[str, Any]
) -> None:
    """Set the expiry of the cluster NAME: the cloud deletes it that many hours from now.

    The cost of the added hours is shown and must be confirmed.
    """
    from trainyard_kit.clouds.cluster import CloudCluster

    existing = clusters.connect(name, provider=provider, **option)
    if not isinstance(existing, CloudCluster):
        raise BadInput(
            f"a cluster of the provider {existing.provider} cannot be extended: it does not expire",
            about=f'cluster "{name}"',
            fix="nothing to do: it runs until you delete it",
        )
    click.echo(existing.extend(hours=hours, confirm=confirm, budget=budget))
