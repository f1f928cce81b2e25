"""``trainyard operator`` and ``trainyard dataset``: prerequisites of lessons in a cluster."""

import click

from kitlib import clusters
from trainyard_kit.cli.options import CLUSTER, OUTPUT, ErrorGroup, next_step, show


@click.group(cls=ErrorGroup)
def operator() -> None:
    """Install, list and remove operators."""


@operator.command("list")
@CLUSTER
@OUTPUT
def list_(cluster: str, output: str | None) -> None:
    """List the operators, and whether a cluster has them."""
    from kitlib.operators.install import list_operators

    show(output, list_operators(clusters.connect(cluster)))


@operator.command("install")
@click.argument("name")
@CLUSTER
def install(name: str, cluster: str) -> None:
    """Install the operator NAME, and wait until it is ready."""
    from kitlib import operators

    click.echo(operators.install(name, cluster=cluster))
    next_step(f"trainyard operator list -c {cluster}")


@operator.command("uninstall")
@click.argument("name")
@CLUSTER
def uninstall(name: str, cluster: str) -> None:
    """Remove the operator NAME; its CRDs are kept while objects of them exist."""
    from kitlib import operators

    click.echo(operators.uninstall(name, cluster=cluster))


@click.group(cls=ErrorGroup)
def dataset() -> None:
    """Prepare datasets on a volume."""


@dataset.command("prepare")
@click.argument("name")
@CLUSTER
@click.option("--volume", default="shared", show_default=True, help="The volume; it is created if missing.")
@click.option("--synthetic/--real", default=None, help="Generate synthetic images, or accept only real ones.")
@click.option("--limit", type=int, help="Minimum number of synthetic training images.")
@click.option("--records", is_flag=True, help="Also write the records that parameter servers read.")
def prepare(
    name: str, cluster: str, volume: str, synthetic: bool | None, limit: int | None, records: bool
) -> None:
    """Prepare the dataset NAME: digits, mnist, cifar10 or tiny-imagenet-200."""
    from kitlib.datasets import prepare_dataset

    target = clusters.connect(cluster).create_volume(volume)
    click.echo(prepare_dataset(name, volume=target, synthetic=synthetic, limit=limit, records=records))
    next_step(f"trainyard volume ls {volume} -c {cluster}")
