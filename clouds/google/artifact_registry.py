"""A cluster's images in Artifact Registry: where they are, the login to it, and what is stored.

No gcloud is needed. Pods need no secret: the account of the machines may pull from the cluster's repository.
"""

from collections.abc import Callable

from clouds.google.accounts import ServiceAccount
from clouds.google.builds import build
from clouds.google.registry import Repository, RepositoryAccess, image_prefix
from clouds.google.session import GcpSession, find
from clouds.google.token import access_token
from clouds.reconciler import reconcile
from clouds.reconciler.clock import Clock
from clouds.tags import Tags
from kitlib.clusters.image_registry import BuildRequest, Login, Registry, StoredImage, short_name

USER = "oauth2accesstoken"  # as Artifact Registry calls whoever brings an access token
_REPOSITORIES = "projects.locations.repositories"


class ArtifactRegistry(Registry):
    """The repository of one cluster.

    Args:
        session: The way into its project and zone.
        tags: Whose it is.
        clock: Of what is waited for; by default the one on the wall.
    """

    def __init__(self, session: GcpSession, tags: Tags, *, clock: Clock | None = None) -> None:
        self.session, self.tags, self.clock = session, tags, clock
        self.repository = Repository(session, tags)

    def address(self, name: str) -> str:
        """Find or create the repository of an image."""
        return f"{self._uri()}/{short_name(name)}"

    def login(self) -> Login:
        """Get a temporary login of the registry."""
        return Login(self._uri().partition("/")[0], USER, access_token()[0])

    def stored(self, name: str, tag: str) -> StoredImage | None:
        """Return the image of a tag, or None."""
        image, repository = short_name(name).replace("/", "%2F"), self.repository.id
        found = self._find("packages.tags", f"{repository}/packages/{image}/tags/{tag}")
        if found is None:
            return None
        digest = found["version"].rpartition("/")[2]
        shown = self._find("dockerImages", f"{repository}/dockerImages/{image}@{digest}") or {}
        return StoredImage(digest, int(shown.get("imageSizeBytes", 0)))

    def build(self, order: BuildRequest, *, report: Callable[[str], None]) -> None:
        """Have Cloud Build build an image and push it."""
        build(self.session, self.tags, order, report=report, clock=self.clock)

    def _uri(self) -> str:
        found = self.repository.found()
        if found is None or not self.repository.owns(found):
            roles = (ServiceAccount(self.session, self.tags, role) for role in ("expiry", "nodes"))
            parts = [*roles, self.repository, RepositoryAccess(self.session, self.tags)]
            title = f'repository of cluster "{self.tags.cluster}"'
            reconcile.bring_up(parts, title=title, resume="the same call again", clock=self.clock)
            found = self.repository.found() or {}
        usual = image_prefix(self.session.project, self.session.region, self.tags.cluster)
        return found.get("registryUri") or usual

    def _find(self, collection: str, name: str) -> dict | None:
        return find(self.session.rest, "artifactregistry", f"{_REPOSITORIES}.{collection}.get", name=name)
