"""The contract of a provider's container registry.

`trainyard_kit.clouds` implements it; `build_image` pushes to it.
"""

import base64
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from kitlib.k8s.manifests import Object

DOCKER_CONFIG = ".dockerconfigjson"


@dataclass(frozen=True)
class Login:
    """Temporary credentials of a registry."""

    host: str
    user: str
    password: str = field(repr=False)

    def secret(self) -> Object:
        """Write it as a Secret that pods push with; https://kubernetes.io/docs/concepts/configuration/secret."""
        auth = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        content = json.dumps({"auths": {self.host: {"auth": auth}}})
        kind = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson"}
        return {**kind, "stringData": {DOCKER_CONFIG: content}}


@dataclass(frozen=True)
class StoredImage:
    """An image in a registry."""

    digest: str
    bytes: int


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
