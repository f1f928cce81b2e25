"""A cluster's images in ECR: repositories, login, and stored images.

The AWS CLI is not needed. Pods need no pull secret: the node role may pull from the account's repositories.
"""

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from trainyard_kit.clouds import tags
from trainyard_kit.clouds.eks.client_errors import name_taken
from trainyard_kit.clouds.eks.session import AwsSession, as_dict, as_list
from trainyard_kit.container_images.registry import Login, Registry, StoredImage, short_name

NOT_FOUND = ("ImageNotFoundException", "RepositoryNotFoundException")


class EcrRegistry(Registry):
    """One cluster's repositories: ``trainyard/<cluster>/<image>``."""

    def __init__(self, session: AwsSession, owner_tags: tags.Tags) -> None:
        self.session, self.tags = session, owner_tags

    def address(self, name: str) -> str:
        """Create an image's repository if it does not exist; return its URI, without a tag."""
        repository = repository_name(self.tags.cluster, short_name(name))
        self.session.find(
            "ecr",
            "create_repository",
            ignore=("RepositoryAlreadyExistsException",),
            repositoryName=repository,
            imageTagMutability="IMMUTABLE",
            tags=as_list(self.tags.amazon()),
        )
        answer = self.session.call("ecr", "describe_repositories", repositoryNames=[repository])
        (description,) = answer["repositories"]
        if not _is_ours(self.session, description, self.tags.cluster):
            raise name_taken(f"repository {repository}")
        return description["repositoryUri"]

    def login(self) -> Login:
        (authorization,) = self.session.call("ecr", "get_authorization_token")["authorizationData"]
        user, _, password = base64.b64decode(authorization["authorizationToken"]).decode().partition(":")
        return Login(urlsplit(authorization["proxyEndpoint"]).netloc, user, password)

    def find_image(self, name: str, tag: str) -> StoredImage | None:
        answer = self.session.find(
            "ecr",
            "describe_images",
            ignore=NOT_FOUND,
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
    """Find the repositories of a cluster, including those outside its stack."""
    for repository in session.paginate("ecr", "describe_repositories", "repositories"):
        name = repository["repositoryName"]
        if name.startswith(repository_name(cluster, "")) and _is_ours(session, repository, cluster):
            yield name


def _is_ours(session: AwsSession, repository: dict[str, Any], cluster: str) -> bool:
    answer = session.find("ecr", "list_tags_for_resource", resourceArn=repository["repositoryArn"]) or {}
    owner_tags = tags.read(as_dict(answer.get("tags")))
    return owner_tags is not None and owner_tags.cluster == cluster
