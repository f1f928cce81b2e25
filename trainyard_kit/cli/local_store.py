"""What this machine keeps for local clusters, by ``python -m localkube``: images, a cache, bundles.

The nodes' own part is in `kitlib.clusters.machine`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kitlib.clusters import machine
from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.k8s.quantities import format_bytes


def pulled_images() -> Table:
    """List the images in the store, which local nodes run from: pulled ones and loaded ones."""
    rows = [
        (
            ", ".join(image["names"] or image["digests"]) or "no name",
            image["id"].removeprefix("sha256:")[:12],
            f"{image['os']}/{image['architecture']}",
            format_bytes(image["size"]),
            str(image["users"] or "-"),
        )
        for image in machine.ask("image-store", "list")
    ]
    return Table(("image", "id", "platform", "download", "containers"), rows)


def pull_image(reference: str, *, platform: str | None = None) -> dict[str, Any]:
    """Pull an image into this machine's store, with your own Docker credentials.

    Local nodes pull what they need by themselves; this does it before, or brings a tag up to date.

    Args:
        reference: Its name, such as ``nginx:1.27``.
        platform: Such as ``linux/arm64``; by default this machine's.

    Returns:
        Its record, and ``new``: whether anything was fetched.

    Raises:
        ProviderFailed: It cannot be pulled; the error says why.
    """
    with progress(reference) as line:
        options = ["--platform", platform] if platform else []
        found = machine.ask(
            "image-store", "pull", reference, *options, report=_without_title(reference, line.update)
        )
        line.done(f"pulled, {format_bytes(found['size'])}" if found["new"] else "unchanged")
    return found


def save_images(*references: str, file: str) -> int:
    """Write images of the store to an archive that Docker and Podman load as well; return its bytes.

    Raises:
        ProviderFailed: One is not in the store, or the disk is full.
    """
    with progress("images") as line:
        line.update(f"writing {file}")
        size = machine.ask("image-store", "save", *references, "--output", str(Path(file).absolute()))
        line.done(format_bytes(size))
    return size


def remove_images(*references: str) -> dict[str, Any]:
    """Remove images from the store; return what was ``untagged``, the ``images``, and bytes ``freed``.

    Raises:
        ProviderFailed: One is not there, or containers run from it.
    """
    return machine.ask("image-store", "remove", *references)


def prune_images(*, all: bool = False) -> dict[str, Any]:
    """Remove what no image needs, and with ``all`` the images that no container uses; as `remove_images`."""
    return machine.ask("image-store", "prune", *(["--all"] if all else []))


def _without_title(title: str, update: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: update(text.removeprefix(f"{title}: "))


def create_bundle(file: str, *, wheels: bool = True, images: Sequence[str] = ()) -> dict[str, Any]:
    """Put all that is fetched or built for local clusters into one file.

    Args:
        file: Where.
        wheels: With the Python packages of the course, about 3 GB.
        images: Container images that come along; those that are not in the store are pulled.

    Returns:
        The ``file``, its ``bytes``, and what it ``holds``.

    Raises:
        ProviderFailed: Something cannot be obtained, or the disk is full.
    """
    with progress("bundle") as line:
        made = machine.ask(
            "bundle",
            "create",
            str(Path(file).absolute()),
            *([] if wheels else ["--without-wheels"]),
            *(f"--image={image}" for image in images),
            report=line.update,
        )
        line.done(f"{made['bytes'] / 1e6:,.0f} MB")
    return made


def use_bundle(file: str) -> dict[str, Any]:
    """Unpack a bundle, so that this machine makes clusters without a network.

    Raises:
        ProviderFailed: It is cut, damaged or for other machines, or the disk is too small.
    """
    with progress("bundle") as line:
        used = machine.ask("bundle", "use", str(Path(file).absolute()), report=line.update)
        line.done("unpacked")
    return used


def cache_contents() -> Table:
    """List what the kit keeps on this machine, the largest first."""
    return _cache_table(machine.ask("cache"), empty="nothing is kept")


def clear_cache(what: str | None = None) -> Table:
    """Remove what neither a cluster nor this version of the kit uses; list what was removed.

    Args:
        what: A kind, of which all is removed that no cluster uses.

    Raises:
        ProviderFailed: There is no such kind, or it cannot be removed.
    """
    return _cache_table(
        machine.ask("cache", "--clear", *([f"--what={what}"] if what else [])),
        empty="nothing was to be removed",
    )


def _cache_table(entries: list[dict[str, Any]], *, empty: str) -> Table:
    rows = [
        (entry["what"], format_bytes(entry["size"]), entry["used"] or "nobody", entry["path"])
        for entry in entries
    ]
    return Table(("what", "size", "used by", "path"), rows, empty=empty)
