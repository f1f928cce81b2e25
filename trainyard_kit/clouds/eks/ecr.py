"""A cluster's images in ECR: their repositories, the login to them, and what is stored.

No aws program is needed. Pods need no secret: the role of the nodes may pull from the account's repositories.
"""

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks.client_errors import foreign
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list
from trainyard_kit.container_images.registry import Login, Registry, StoredImage, short_name

NOT_THERE = ("ImageNotFoundException", "RepositoryNotFoundException")


class EcrRegistry(Registry):
    """The repositories of one cluster: ``trainyard/<cluster>/<image>``."""

    def __init__(self, session: AwsSession, owner_tags: tags.Tags) -> None:
        self.session, self.tags = session, owner_tags

    def address(self, name: str) -> str:
        """Create or find an image's repository; return its address, without a tag."""
        repository = repository_name(self.tags.cluster, short_name(name))
        self.session.find(
            "ecr",
            "create_repository",
            fine=("RepositoryAlreadyExistsException",),
            repositoryName=repository,
            imageTagMutability="IMMUTABLE",
            tags=as_list(self.tags.amazon()),
        )
        answer = self.session.call("ecr", "describe_repositories", repositoryNames=[repository])
        (found,) = answer["repositories"]
        if not _is_ours(self.session, found, self.tags.cluster):
            raise foreign(f"repository {repository}")
        return found["repositoryUri"]

    def login(self) -> Login:
        (authorization,) = self.session.call("ecr", "get_authorization_token")["authorizationData"]
        user, _, password = base64.b64decode(authorization["authorizationToken"]).decode().partition(":")
        return Login(urlsplit(authorization["proxyEndpoint"]).netloc, user, password)

    def stored(self, name: str, tag: str) -> StoredImage | None:
        answer = self.session.find(
            "ecr",
            "describe_images",
            fine=NOT_THERE,
            repositoryName=repository_name(self.tags.cluster, short_name(name)),
            imageIds=[{"imageTag": tag}],
        )
        if not answer or not answer["imageDetails"]:
            return None
        image = answer["imageDetails"][0]
        return StoredImage(image["imageDigest"], image.get("imageSizeInBytes") or 0)


def repository_name(cluster: str, image: str) -> str:
    return f"trainyard/{cluster}/{image}"


def repositories(session: AwsSession, cluster: str) -> Iterator[str]:
    """Find the repositories of a cluster, also those that its stack does not have."""
    for repository in session.every("ecr", "describe_repositories", "repositories"):
        name = repository["repositoryName"]
        if name.startswith(repository_name(cluster, "")) and _is_ours(session, repository, cluster):
            yield name


def _is_ours(session: AwsSession, repository: dict[str, Any], cluster: str) -> bool:
    answer = session.find("ecr", "list_tags_for_resource", resourceArn=repository["repositoryArn"]) or {}
    owner_tags = tags.read(as_dict(answer.get("tags")))
    return owner_tags is not None and owner_tags.cluster == cluster
