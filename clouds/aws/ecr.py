"""A cluster's images in ECR: their repositories, the login to them, and what is stored.

No aws program is needed. Pods need no secret: the role of the nodes may pull from the account's repositories.
"""

import base64
from collections.abc import Callable
from urllib.parse import urlsplit

from clouds.aws.builds import build
from clouds.aws.plan import EksPlan
from clouds.aws.registry import Repositories
from clouds.reconciler.clock import Clock
from kitlib.clusters.image_registry import BuildRequest, Login, Registry, StoredImage, short_name

NOT_THERE = {"ImageNotFoundException", "RepositoryNotFoundException"}


class EcrRegistry(Registry):
    """The repositories of one cluster.

    Args:
        plan: The cluster.
        clock: Of the waiting for builds; by default the one on the wall.
    """

    def __init__(self, plan: EksPlan, *, clock: Clock | None = None) -> None:
        self.clock = clock
        self.plan, self.session = plan, plan.session
        self.repositories = Repositories(plan)

    def address(self, name: str) -> str:
        """Make the repository of an image, or find it; return its address."""
        return self.repositories.ensure(short_name(name))

    def login(self) -> Login:
        """Get a temporary login of the registry."""
        (found,) = self.session.call("ecr", "get_authorization_token")["authorizationData"]
        user, _, password = base64.b64decode(found["authorizationToken"]).decode().partition(":")
        return Login(urlsplit(found["proxyEndpoint"]).netloc, user, password)

    def stored(self, name: str, tag: str) -> StoredImage | None:
        """Return the image of a tag, or None."""
        found = self.session.call(
            "ecr",
            "describe_images",
            fine=NOT_THERE,
            repositoryName=self.repositories.resource_name(short_name(name)),
            imageIds=[{"imageTag": tag}],
        )
        if not found or not found["imageDetails"]:
            return None
        image = found["imageDetails"][0]
        return StoredImage(image["imageDigest"], image.get("imageSizeInBytes") or 0)

    def build(self, order: BuildRequest, *, report: Callable[[str], None]) -> None:
        """Have CodeBuild build an image and push it."""
        build(self.plan, order, report=report, clock=self.clock)
