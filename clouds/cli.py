"""``kit resources`` and ``kit extend``: the kit's resources at clouds, and the end of a cluster."""

import click

from kitlib import clusters, config
from kitlib.cli.options import OPTION, options_of
from kitlib.errors import BadInput


def _where(command):
    for option in (
        click.option("--provider", help="eks or gke; by default both."),
        click.option("--region", "regions", multiple=True, help="Of AWS; repeat it, or say all."),
        click.option("--profile", help="Of your AWS configuration."),
        click.option("--project", help="Of Google Cloud."),
    ):
        command = option(command)
    return command


def _places(regions: tuple[str, ...]) -> tuple[str, ...] | str | None:
    return "all" if "all" in regions else regions or None


@click.group()
def resources() -> None:
    """List and delete the kit's resources at clouds, whoever created them."""


@resources.command("list")
@click.option("--cluster", "-c", help="Only what belongs to this one.")
@_where
def list_(regions: tuple[str, ...], **where) -> None:
    """List the kit's resources at clouds, found by their tags, and the cost of its clusters."""
    from clouds import inventory

    cluster = where.pop("cluster")
    chosen = inventory.clouds(regions=_places(regions), **where)
    click.echo(inventory.find(chosen, cluster=cluster).table())
    costs = inventory.costs(chosen, budget=config.read().budget)
    click.echo(f"\n{costs}" if len(costs) else "")


@resources.command()
@click.argument("names", metavar="[CLUSTER]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Of every cluster of the kit that is found.")
@click.option("--really", is_flag=True, help="Delete it; without this it is only listed.")
@click.option("--yes", "confirm", is_flag=True, help="More than one cluster is meant.")
@_where
def delete(names: tuple[str, ...], every: bool, really: bool, regions: tuple[str, ...], **given) -> None:
    """Delete what belongs to each CLUSTER, also where the cluster itself is gone."""
    from clouds.inventory import delete_resources

    if bool(names) == every:
        raise click.UsageError("name one cluster or several, or say --all")
    left = delete_resources(clusters=names or None, regions=_places(regions), dry_run=not really, **given)
    click.echo(left)
    if not really and len(left):
        click.echo("\nNothing was deleted. To delete all of this: the same with --really", err=True)


@click.command()
@click.argument("name", default=config.DEFAULT_CLUSTER)
@click.option("--hours", type=float, required=True, help="From now.")
@click.option("--provider", help="Whose; by default any that this machine used for this name.")
@click.option("--yes", "confirm", is_flag=True, help="Agree to the price of the hours that are added.")
@click.option("--budget", type=float, help="Dollars for all clusters there; by default TRAINYARD_BUDGET.")
@OPTION
def extend(name: str, hours: float, provider: str | None, option: tuple[str, ...], **money) -> None:
    """Let the cloud delete the cluster NAME so many hours from now, and not before.

    What the further hours cost is shown, and asked for.
    """
    found = clusters.connect(name, provider=provider, **options_of(option))
    if not hasattr(found, "extend"):
        raise BadInput(
            f"a cluster of the provider {found.provider} has no end that could be put off",
            about=f'cluster "{name}"',
            fix="it stays until you delete it",
        )
    click.echo(found.extend(hours=hours, **money))
