"""Stand-ins for container images: the host's file system, and for known images their entry point.

``images.toml`` is the table; this module matches images to its entries. A container with a command runs it on
any image; one without a command needs an entry, because the image's own command is not known otherwise.

Pure. ``image_programs.py`` finds the table's programs on this machine.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

WORKING_DIRECTORY = "/workspace"
# How images are obtained: never pulled, always, or unless a stand-in is preferred or no registry answers.
STAND_IN, PULL, AUTO = IMAGE_MODES = "stand-in", "pull", "auto"


@dataclass(frozen=True)
class StandIn:
    """An entry of the table; ``images.toml`` says what each field means.

    ``known`` is False for an image without an entry.
    """

    match: tuple[str, ...] = ()
    tags: tuple[str, ...] = ("*",)
    shown: str = "the host's file system"
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    directory: str = WORKING_DIRECTORY
    env: Mapping[str, str] = field(default_factory=dict)
    files: str = ""
    program: str = ""
    provides: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    user: str = ""
    hub_tags: str = ""
    hub_example: str = ""
    cannot: str = ""
    preferred: bool = False
    own: bool = False
    known: bool = True

    def replaces(self, image: str) -> bool:
        """Check whether this replaces an image that is not in the store, without contacting a registry.

        Only for the kit's own image, by its own name: every other image is pulled if possible.
        """
        repository, _ = split(image)
        return self.own and repository in self.match and registry(image) in HUB

    def is_preferred_to(self, image: str) -> bool:
        """Check whether this also replaces an image that its registry refuses, or does not have.

        PyTorch's images only from its own registries: elsewhere an image of that name is another one. Those
        in a file of ``TRAINYARD_STAND_INS`` from any registry, because readers build them under any name.
        """
        return self.preferred and (self.own or bool(self.files) or registry(image) in PUBLISHED)

    def fits(self, image: str) -> bool:
        """Match an image by its repository, or by registry and repository, and its tag."""
        repository, tag = split(image)
        names = (repository, image.partition(repository)[0] + repository)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.match) and any(
            fnmatchcase(tag, pattern) for pattern in self.tags
        )


HUB = ("", "docker.io/", "index.docker.io/")
PUBLISHED = (*HUB, "ghcr.io/")
UNKNOWN = StandIn(known=False, cannot="the container must name its command")


@cache
def table() -> tuple[StandIn, ...]:
    """Load the entries in the order in which they are tried: those of ``TRAINYARD_STAND_INS`` first."""
    text = resources.files("localkube.kubelet.images").joinpath("images.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["image"]
    if more := os.environ.get("TRAINYARD_STAND_INS"):
        path = Path(more)
        added = tomllib.loads(path.read_text(encoding="utf-8"))["image"]
        entries = [entry | {"files": str(path.parent / entry.get("files", ""))} for entry in added] + entries
    return tuple(map(_stand_in, entries))


def _stand_in(entry: Mapping[str, Any]) -> StandIn:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return StandIn(**fields)


def split(image: str) -> tuple[str, str]:
    """Split an image into its repository, without registry and ``library/``, and its tag.

    Example:
        >>> split("docker.io/library/busybox:1.36"), split("localhost:5000/trainyard/trainer@sha256:0")
        (('busybox', '1.36'), ('trainyard/trainer', 'latest'))
    """
    name = image.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    parts = (head + slash + last).split("/")
    if len(parts) > 1 and (set(parts[0]) & {".", ":"} or parts[0] == "localhost"):
        parts = parts[1:]
    if "library" in parts[:-1]:
        parts = parts[parts.index("library") + 1 :]
    return "/".join(parts), tag or "latest"


def registry(image: str) -> str:
    """Return the part before the repository: empty, or a registry and a slash."""
    return image.partition(split(image)[0])[0]


@lru_cache(maxsize=512)
def stand_in(image: str) -> StandIn:
    """Find the entry for ``image``.

    Example:
        >>> stand_in("registry.example/library/busybox:1.36").arguments
        ('sh',)
    """
    return next((entry for entry in table() if entry.fits(image)), UNKNOWN)


def missing_tag(image: str) -> str:
    """Explain that Docker Hub has no such tag of a known repository; empty if it has, or might have it."""
    repository, tag = split(image)
    known = stand_in(image)
    if not known.hub_tags or registry(image) not in HUB or "@" in image or re.fullmatch(known.hub_tags, tag):
        return ""
    return f'Docker Hub has no tag "{tag}" of {repository}; one that it has is "{known.hub_example}"'


def ignored_mounts(container: Mapping[str, Any]) -> list[str]:
    """List the paths of mounted volumes that the stand-in does not read."""
    places = [mount["mountPath"] for mount in container.get("volumeMounts") or []]
    ignored = stand_in(container["image"]).ignores
    return [place for place in places if any(f"{place}/".startswith(f"{folder}/") for folder in ignored)]
