"""``trainyard volume``: create shared volumes, and copy files to and from them."""

import click

from kitlib import clusters
from kitlib.errors import VolumeNotFound
from trainyard_kit.cli.options import (
    CLUSTER,
    IGNORE_NOT_FOUND,
    OUTPUT,
    VOLUME_NAME,
    ErrorGroup,
    next_step,
    show,
)


@click.group(cls=ErrorGroup)
def volume() -> None:
    """Create volumes that all pods share, and copy files to and from them."""


@volume.command()
@VOLUME_NAME
@CLUSTER
@click.option("--size", default="5Gi", show_default=True, help="Minimum size.")
@click.option("--storage-class", help="The StorageClass; by default the cluster's default.")
@click.option("--access-mode", help="ReadWriteMany, the default; ReadWriteOnce for pods on one node.")
def create(name: str, cluster: str, size: str, storage_class: str | None, access_mode: str | None) -> None:
    """Create the volume NAME, or reuse it if it exists."""
    existing = clusters.connect(cluster)
    click.echo(existing.create_volume(name, size=size, storage_class=storage_class, access_mode=access_mode))
    next_step(f"trainyard volume upload {name} PATH -c {cluster}")


@volume.command("list")
@CLUSTER
@OUTPUT
def list_(cluster: str, output: str | None) -> None:
    """List the volumes in a cluster."""
    show(output, clusters.connect(cluster).volumes())


@volume.command()
@VOLUME_NAME
@click.argument("path", default="")
@CLUSTER
@OUTPUT
def ls(name: str, path: str, cluster: str, output: str | None) -> None:
    """List the folder PATH of the volume NAME."""
    show(output, clusters.connect(cluster).volume(name).ls(path))


@volume.command()
@VOLUME_NAME
@click.argument("path", type=click.Path(exists=True))
@click.argument("to", default="")
@CLUSTER
@click.option("--replace", is_flag=True, help="Replace an existing folder.")
def upload(name: str, path: str, to: str, cluster: str, replace: bool) -> None:
    """Copy the file or folder PATH to the volume NAME, as TO."""
    click.echo(clusters.connect(cluster).volume(name).upload(path, to=to, replace=replace))


@volume.command()
@VOLUME_NAME
@click.argument("path")
@click.argument("to", default=".", type=click.Path())
@CLUSTER
def download(name: str, path: str, to: str, cluster: str) -> None:
    """Copy the file or folder PATH of the volume NAME to this machine."""
    click.echo(clusters.connect(cluster).volume(name).download(path, to=to))


@volume.command()
@VOLUME_NAME
@CLUSTER
@IGNORE_NOT_FOUND
def delete(name: str, cluster: str, ignore_not_found: bool) -> None:
    """Delete the volume NAME and its files."""
    try:
        clusters.connect(cluster).volume(name).delete()
    except VolumeNotFound:
        if not ignore_not_found:
            raise
        return
    click.echo(f"volume {name} is deleted")
    next_step(f"trainyard volume list -c {cluster}")
