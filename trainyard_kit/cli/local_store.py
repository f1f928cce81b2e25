"""``trainyard image``, ``bundle`` and ``cache``: images and downloads on this machine for local clusters.

The commands call ``python -m localkube`` through `kitlib.clusters.machine` and print the results.
"""

from pathlib import Path
from typing import Any

import click

from kitlib import clusters
from kitlib.clusters import machine
from kitlib.clusters.trainer_image import TRAINER
from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.k8s.quantities import format_bytes
from trainyard_kit.cli.current import default_cluster
from trainyard_kit.cli.options import NAMED_CLUSTER, OUTPUT, ErrorGroup, next_step, show


@click.group(cls=ErrorGroup)
def bundle() -> None:
    """Bundle all downloads and builds for machines without a network."""


@bundle.command("create")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--without-wheels", is_flag=True, help="Leave out the Python packages, for a smaller file.")
@click.option("--image", "images", multiple=True, help="A container image to add; repeatable.")
def create_bundle(file: Path, without_wheels: bool, images: tuple[str, ...]) -> None:
    """Create FILE from this machine's cache and downloaded Python packages."""
    options = [*(["--without-wheels"] if without_wheels else []), *(f"--image={image}" for image in images)]
    with progress("bundle") as line:
        archive = machine.call("bundle", "create", str(file.absolute()), *options, report=line.update)
        line.done(f"{archive['bytes'] / 1e6:,.0f} MB")
    click.echo(f"{archive['file']}: {archive['bytes'] / 1e6:,.0f} MB, {', '.join(archive['holds'])}")
    next_step(f"on the other machine: trainyard bundle use {file.name}")


@bundle.command("use")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def use_bundle(file: Path) -> None:
    """Unpack FILE, so that this machine needs no network."""
    with progress("bundle") as line:
        unpacked = machine.call("bundle", "use", str(file.absolute()), report=line.update)
        line.done("unpacked")
    click.echo(f"{unpacked['cache']} has {', '.join(unpacked['holds'])}")
    next_step("trainyard quickstart")


@click.group(cls=ErrorGroup, invoke_without_command=True)
@click.option("--wide", is_flag=True, help="Also show the limits of each stand-in.")
@OUTPUT
@click.pass_context
def image(context: click.Context, wide: bool, output: str | None) -> None:
    """Show, pull, load, save, build and remove images, and show the stand-ins for some."""
    if context.invoked_subcommand is None:
        columns = ("image", "tags", "stand_in", "state") + (("cannot",) if wide else ())
        rows = [tuple(row[column] for column in columns) for row in machine.call("images")]
        known = Table([column.replace("_", " ") for column in columns], rows)
        pulled = _pulled_images()
        if pulled.rows or output:
            show(output, known=known, pulled=pulled)
        else:
            show(output, known)


@image.command("list")
@OUTPUT
def list_images(output: str | None) -> None:
    """Show the images that were pulled or loaded."""
    show(output, _pulled_images())


def _pulled_images() -> Table:
    rows = [
        (
            ", ".join(image["names"] or image["digests"]) or "no name",
            image["id"].removeprefix("sha256:")[:12],
            f"{image['os']}/{image['architecture']}",
            format_bytes(image["size"]),
            str(image["users"] or "-"),
        )
        for image in machine.call("image-store", "list")
    ]
    return Table(("image", "id", "platform", "download", "containers"), rows)


@image.command("build")
@click.argument("name", default=TRAINER)
@click.option("--tag", help="The tag; by default made from the content.")
@click.option("--dockerfile", default="images/trainer/Dockerfile", show_default=True)
@click.option("--registry", default="", help="The registry to push to.")
@click.option("--here", is_flag=True, help="Build it without a cluster.")
@NAMED_CLUSTER
def build_image(
    name: str, tag: str | None, dockerfile: str, registry: str, here: bool, cluster: str | None
) -> None:
    """Build the image NAME, by default the trainer's, for the pods of a cluster."""
    from trainyard_kit.container_images import build_image as build

    existing = None if here else clusters.connect(cluster or default_cluster())
    click.echo(build(name, tag=tag, dockerfile=dockerfile, registry=registry, cluster=existing))


@image.command("pull")
@click.argument("references", nargs=-1, required=True)
@click.option("--platform", help="The platform, such as linux/arm64; by default this machine's.")
def pull_images(references: tuple[str, ...], platform: str | None) -> None:
    """Pull REFERENCES, with your own Docker credentials."""
    options = ["--platform", platform] if platform else []
    for reference in references:
        with progress(reference) as line:
            title, update = f"{reference}: ", line.update
            images = machine.call(
                *("image-store", "pull", reference, *options),
                report=lambda text, title=title, update=update: update(text.removeprefix(title)),  # type: ignore[misc]
            )
            line.done(f"pulled, {format_bytes(images['size'])}" if images["new"] else "unchanged")
        click.echo(f"{', '.join(images['names'] or images['digests'])} is {images['id']}")


@image.command("load")
@click.argument("file", type=click.Path(exists=True))
def load_images(file: str) -> None:
    """Load the images in FILE, an archive of docker save or an OCI layout."""
    for loaded in machine.load_images(file):
        click.echo(f"{', '.join(loaded['names']) or 'an image without a name'} is {loaded['id']}")


@image.command("save")
@click.argument("references", nargs=-1, required=True)
@click.option("--file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The archive.")
def save_images(references: tuple[str, ...], file: Path) -> None:
    """Write REFERENCES to one archive that Docker and Podman can load."""
    with progress("images") as line:
        line.update(f"writing {file}")
        size = machine.call("image-store", "save", *references, "--output", str(file.absolute()))
        line.done(format_bytes(size))
    click.echo(f"{file}: {size / 1e6:,.1f} MB")


@image.command("remove")
@click.argument("references", nargs=-1, required=True)
def remove_images(references: tuple[str, ...]) -> None:
    """Remove REFERENCES: names, or ids."""
    _echo_removed(machine.call("image-store", "remove", *references))


@image.command("prune")
@click.option("--all", "everything", is_flag=True, help="Also remove images that no container uses.")
def prune_images(everything: bool) -> None:
    """Remove unused layers and partial downloads."""
    _echo_removed(machine.call("image-store", "prune", *(["--all"] if everything else [])))


def _echo_removed(removed: dict[str, Any]) -> None:
    for name in removed["untagged"]:
        click.echo(f"{name} is removed")
    click.echo(f"{len(removed['images'])} images removed, {removed['freed'] / 1e6:,.1f} MB freed")


@image.command("get")
@click.argument("names", nargs=-1, required=True)
def get_images(names: tuple[str, ...]) -> None:
    """Get the programs NAMES that stand in for images; building an operator takes a minute or two."""
    for program in machine.get_images(*names):
        click.echo(f"{program['name']} {program['version']} is in {program['folder']}")


@click.group(cls=ErrorGroup, invoke_without_command=True)
@OUTPUT
@click.pass_context
def cache(context: click.Context, output: str | None) -> None:
    """Show the kit's files on this machine and their sizes."""
    if context.invoked_subcommand is None:
        show(output, _cached(empty="the cache is empty"))


@cache.command("clear")
@click.option("--what", help="Remove all unused files of one kind, such as bench.")
def clear_cache(what: str | None) -> None:
    """Remove files that neither a cluster nor this version of the kit uses."""
    options = ["--clear", *([f"--what={what}"] if what else [])]
    click.echo(_cached(*options, empty="nothing to remove"))


def _cached(*options: str, empty: str) -> Table:
    rows = [
        (entry["what"], format_bytes(entry["size"]), entry["used"] or "unused", entry["path"])
        for entry in machine.call("cache", *options)
    ]
    return Table(("item", "size", "used by", "path"), rows, empty=empty)
