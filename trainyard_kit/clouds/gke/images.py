"""A cluster's images in Artifact Registry. Pods need no pull secret: the nodes' service account may pull."""

from trainyard_kit.clouds.gke.parts import parts
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.gke.token import access_token
from trainyard_kit.clouds.tags import Tags
from trainyard_kit.container_images.registry import Login, Registry, StoredImage, short_name


class ArtifactRegistry(Registry):
    def __init__(self, session: GcpSession, tags: Tags) -> None:
        self.session, self.tags = session, tags
        self.repository = parts(session, tags.cluster)["repository"]

    def address(self, name: str) -> str:
        return f"{self._uri()}/{short_name(name)}"

    def login(self) -> Login:
        return Login(self._uri().partition("/")[0], "oauth2accesstoken", access_token()[0])

    def find_image(self, name: str, tag: str) -> StoredImage | None:
        image, repository = short_name(name).replace("/", "%2F"), self.repository.path
        reference = self.session.find("artifactregistry", f"{repository}/packages/{image}/tags/{tag}")
        if reference is None:
            return None
        digest = reference["version"].rpartition("/")[2]
        item = self.session.find("artifactregistry", f"{repository}/dockerImages/{image}@{digest}") or {}
        return StoredImage(digest, int(item.get("imageSizeBytes", 0)))

    def _uri(self) -> str:
        region, project, cluster = self.session.region, self.session.project, self.tags.cluster
        item = self.repository.get(self.session) or {}
        return item.get("registryUri") or f"{region}-docker.pkg.dev/{project}/trainyard-{cluster}"
