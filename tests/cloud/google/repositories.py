"""Images in Artifact Registry: where they are, and what is told of them."""

import hashlib

from .rest import Request, Rest

BYTES = 1234  # of every image


def get_repository(rest: Rest, request: Request) -> dict:
    """A repository with its address."""
    _, project, _, place, _, name = request.path.split("/")
    body = rest.store.get("artifactregistry", request.path).body
    return body | {"registryUri": f"{place}-docker.pkg.dev/{project}/{name}"}


def get_image(rest: Rest, request: Request) -> dict:
    """An image's metadata: of each the same."""
    return {"name": request.path, "imageSizeBytes": str(BYTES)}


def push(rest: Rest, image: str) -> str:
    """Have an image in its repository, ``us-central1-docker.pkg.dev/p/r/image:tag``; return its digest."""
    name, _, tag = image.rpartition(":")
    host, project, repository, *words = name.split("/")
    digest = f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"
    place = f"projects/{project}/locations/{host.partition('-docker')[0]}/repositories/{repository}"
    package = f"{place}/packages/{'%2F'.join(words)}"
    path = f"{package}/tags/{tag}"
    rest.store.put("artifactregistry", path, {"name": path, "version": f"{package}/versions/{digest}"})
    return digest


_REPOSITORIES = "artifactregistry.projects.locations.repositories"
SPECIALS = {f"{_REPOSITORIES}.get": get_repository, f"{_REPOSITORIES}.dockerImages.get": get_image}
