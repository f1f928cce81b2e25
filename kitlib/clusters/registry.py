"""Where the images of a cluster at a cloud are, and how one gets there without an engine on this machine: the
contract.

`aws.images` and `google.images` fulfil it; `kitlib.container_images` builds with what there is, and asks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Login:
    """What opens a registry, for minutes or hours.

    Attributes:
        host: The registry's, without a path.
        user: As registries know one.
        password: Never shown.
    """

    host: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Stored:
    """An image in a registry.

    Attributes:
        digest: ``sha256:…``.
        bytes: Of its layers, as they are stored: compressed.
    """

    digest: str
    bytes: int


@dataclass(frozen=True)
class Order:
    """What a cloud's own builder is to do.

    Attributes:
        image: The whole name of the image, with its tag.
        archive: A zip file of the context.
        dockerfile: In it.
        arguments: Values of its ``ARG``.
    """

    image: str
    archive: Path
    dockerfile: str
    arguments: dict[str, str] = field(default_factory=dict)


def short_name(name: str) -> str:
    """Return an image's name without the kit's, which a cluster's repository has anyway.

    Example:
        >>> short_name("trainyard/trainer")
        'trainer'
    """
    return str(PurePosixPath(name).relative_to("trainyard")) if name.startswith("trainyard/") else name


class Registry(ABC):
    """Where the images of one cluster are.

    Contract: what is made carries the cluster's tags, and goes with the cluster. A name is the image's alone,
    such as ``trainyard/trainer``; all raise a `KitError` that says what to do.

    Attributes:
        platform: What the cluster's nodes run: ``linux/amd64``.
    """

    platform: str = "linux/amd64"

    @abstractmethod
    def address(self, name: str) -> str:
        """Make an image's repository, or find it; return its host and path, without a tag."""

    @abstractmethod
    def login(self) -> Login:
        """Return what a push needs."""

    @abstractmethod
    def stored(self, name: str, tag: str) -> Stored | None:
        """Return the image of a tag, or None."""

    @abstractmethod
    def build(self, order: Order, *, report: Callable[[str], None]) -> None:
        """Have the cloud build an image and put it into the registry; returns when it is there.

        Args:
            order: What from.
            report: Called with a line on how far it is.

        Raises:
            CommandFailed: Building failed; the error has the last lines of what was said.
        """
