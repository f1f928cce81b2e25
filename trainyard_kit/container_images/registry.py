"""The contract of a provider's container registry, which may also build images.

`trainyard_kit.clouds` implements it; `build_image` builds and pushes with it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Login:
    """Temporary credentials of a registry."""

    host: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class StoredImage:
    """An image in a registry."""

    digest: str
    bytes: int


@dataclass(frozen=True)
class BuildRequest:
    """A build for the cloud's own builder."""

    image: str
    archive: Path
    dockerfile: str
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """Docker's words for it, in the folder of the context."""
        values = (f"--build-arg={key}={value}" for key, value in self.arguments.items())
        return ["build", f"--file={self.dockerfile}", f"--tag={self.image}", *values, "."]


def short_name(name: str) -> str:
    """Remove the prefix ``trainyard/`` from an image's name; a cluster's repositories have it anyway.

    Example:
        >>> short_name("trainyard/trainer")
        'trainer'
    """
    return str(PurePosixPath(name).relative_to("trainyard")) if name.startswith("trainyard/") else name


class Registry(ABC):
    """The registry of one cluster's images.

    Contract: repositories carry the cluster's tags, and are deleted with the cluster. A name is the image's
    alone, such as ``trainyard/trainer``. All methods raise a `KitError` that says what to do.
    """

    platform: str = "linux/amd64"

    @abstractmethod
    def address(self, name: str) -> str:
        """Create or find an image's repository; return its host and path, without a tag."""

    @abstractmethod
    def login(self) -> Login:
        """Get the credentials for a push."""

    @abstractmethod
    def stored(self, name: str, tag: str) -> StoredImage | None:
        """Find the image of a tag."""

    @abstractmethod
    def build(self, order: BuildRequest, *, report: Callable[[str], None]) -> None:
        """Build an image at the cloud and push it to the registry; returns when it is there."""
