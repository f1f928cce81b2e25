"""The contract of a provider's container registry, which `trainyard_kit.clouds` implements."""

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

    def docker_config(self) -> str:
        """Write the ``config.json`` of Docker that has it."""
        auth = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return json.dumps({"auths": {self.host: {"auth": auth}}})

    def secret(self) -> Object:
        """Build a Secret with it: https://kubernetes.io/docs/concepts/configuration/secret."""
        kind = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson"}
        return {**kind, "stringData": {DOCKER_CONFIG: self.docker_config()}}


@dataclass(frozen=True)
class StoredImage:
    """An image in a registry."""

    digest: str
    bytes: int


def short_name(name: str) -> str:
    """Remove the prefix ``trainyard/`` from an image's name, which all repositories have.

    Example:
        >>> short_name("trainyard/trainer")
        'trainer'
    """
    return str(PurePosixPath(name).relative_to("trainyard")) if name.startswith("trainyard/") else name


class Registry(ABC):
    """The registry of one cluster's images.

    Repositories carry the cluster's tags, and are deleted with the cluster. Names have no registry and no
    tag: ``trainyard/trainer``. Methods raise `KitError`.
    """

    platform: str = "linux/amd64"

    @abstractmethod
    def address(self, name: str) -> str:
        """Create an image's repository if it does not exist; return its host and path, without a tag."""

    @abstractmethod
    def login(self) -> Login:
        """Return the credentials for a push."""

    @abstractmethod
    def find_image(self, name: str, tag: str) -> StoredImage | None:
        """Find the image of a tag; None if there is none."""
