"""The repository for a cluster's images in Artifact Registry, and who may pull from it and push to it.

What is in it is in `images`; what Cloud Build does is in `builds`.
"""

from clouds.google.access import IamBinding
from clouds.google.accounts import ANCHOR, BUILDS, email
from clouds.google.owned import GcpResource, labels_of, raise_failure
from clouds.google.session import find

READER, WRITER = "roles/artifactregistry.reader", "roles/artifactregistry.writer"
_COLLECTION = "projects.locations.repositories"


def repository_id(project: str, region: str, cluster: str) -> str:
    """Name the repository of a cluster in Artifact Registry."""
    return f"projects/{project}/locations/{region}/repositories/trainyard-{cluster}"


def image_prefix(project: str, region: str, cluster: str) -> str:
    """Return with what the names of images begin that are in it.

    Example:
        >>> image_prefix("my-project", "us-central1", "lab")
        'us-central1-docker.pkg.dev/my-project/trainyard-lab'
    """
    return f"{region}-docker.pkg.dev/{project}/trainyard-{cluster}"


class Repository(GcpResource):
    """A repository of container images, in the cluster's region."""

    name, kind, depends_on = "repository", "artifactregistry.googleapis.com/Repository", (ANCHOR,)
    expected, expected_gone, poll = 8.0, 8.0, 5.0
    hourly_cost = "0.10 dollars a month for each gigabyte in it"

    @property
    def id(self) -> str:
        return repository_id(self.session.project, self.session.region, self.tags.cluster)

    def found(self):
        return find(self.session.rest, "artifactregistry", f"{_COLLECTION}.get", name=self.id)

    def labels(self, found):
        return found.get("labels") or {}

    def create(self) -> None:
        parent, _, name = self.id.rpartition("/repositories/")
        body = {
            "format": "DOCKER",
            "labels": labels_of(self.tags, self.session.zone),
            "description": "Images of Trainyard",
        }

        def request() -> None:
            begun = self.session.rest(
                "artifactregistry", f"{_COLLECTION}.create", parent=parent, repositoryId=name, body=body
            )
            self.operation = begun["name"]

        self.send_create(request)

    def remove(self) -> None:
        self.operation = self.session.rest("artifactregistry", f"{_COLLECTION}.delete", name=self.id)["name"]

    def under_way(self) -> bool:
        if not self.operation:
            return False
        now = find(
            self.session.rest,
            "artifactregistry",
            "projects.locations.operations.get",
            name=self.operation,
        )
        if now is not None and not now.get("done"):
            return True
        self.operation = ""
        raise_failure((now or {}).get("error"), self.id, self.session.project)
        return False


class _OfRepository(IamBinding):
    kind = "artifactregistry.googleapis.com/Policy"

    def policy(self) -> dict | None:
        return find(self.session.rest, "artifactregistry", f"{_COLLECTION}.getIamPolicy", resource=self._id)

    def set_policy(self, policy: dict) -> None:
        body = {"policy": policy}
        self.session.rest("artifactregistry", f"{_COLLECTION}.setIamPolicy", resource=self._id, body=body)

    @property
    def _id(self) -> str:
        return repository_id(self.session.project, self.session.region, self.tags.cluster)


class RepositoryAccess(_OfRepository):
    """That the cluster's machines may pull images."""

    name, depends_on = "access to the repository", ("repository", "account nodes")
    roles = (READER,)

    @property
    def member(self) -> str:
        return f"serviceAccount:{email(self.session, 'nodes', self.tags.cluster)}"


class BuildsPush(_OfRepository):
    """That builds may push images."""

    name, depends_on = "repository for builds", ("account builds",)
    roles = (WRITER,)

    @property
    def member(self) -> str:
        return f"serviceAccount:{email(self.session, BUILDS, self.tags.cluster)}"
