"""Artifact Registry's images: those that builds have pushed, and those of a real registry in its place."""

import hashlib
import urllib.error
import urllib.request
from base64 import b64encode

from .api_errors import ApiError
from .rest import Request, Rest

BYTES = 1234
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def get_repository(rest: Rest, request: Request) -> dict:
    """Return a repository, with its address: that of the real registry, if there is one."""
    body = rest.store.get("artifactregistry", request.path).body
    _, project, _, place, _, name = request.path.split("/")
    host = rest.world.registry or f"{place}-docker.pkg.dev"
    return {**body, "registryUri": f"{host}/{project}/{name}"}


def get_tag(rest: Rest, request: Request) -> dict:
    """Return which version a tag is."""
    if rest.store.has("artifactregistry", request.path) or not rest.world.registry:
        return rest.store.get("artifactregistry", request.path).body
    package, _, tag = request.path.rpartition("/tags/")
    digest = _real_digest(rest, package, tag)
    if digest is None:
        raise ApiError("NOT_FOUND", "Requested entity was not found.")
    return {"name": request.path, "version": f"{package}/versions/{digest}"}


def get_image(rest: Rest, request: Request) -> dict:
    """Return what is known of an image: of each the same."""
    return {"name": request.path, "imageSizeBytes": str(BYTES)}


def push(rest: Rest, image: str) -> str:
    """Put an image there, as a build does, and return its digest."""
    name, _, tag = image.rpartition(":")
    digest = f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"
    package = f"{repository(image)}/packages/{'%2F'.join(name.split('/')[3:])}"
    path = f"{package}/tags/{tag}"
    rest.store.put("artifactregistry", path, {"name": path, "version": f"{package}/versions/{digest}"})
    return digest


def repository(image: str) -> str:
    """Return the repository of an image's name: ``us-central1-docker.pkg.dev/p/r/image:tag``."""
    host, project, name = image.split("/")[:3]
    return f"projects/{project}/locations/{host.partition('-docker')[0]}/repositories/{name}"


def _real_digest(rest: Rest, package: str, tag: str) -> str | None:
    words = package.split("/")
    path = f"{words[1]}/{words[5]}/{words[7].replace('%2F', '/')}"
    asked = urllib.request.Request(f"http://{rest.world.registry}/v2/{path}/manifests/{tag}", method="HEAD")
    asked.add_header("Accept", _MANIFEST)
    if rest.world.login:
        asked.add_header("Authorization", f"Basic {b64encode(rest.world.login.encode()).decode()}")
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.headers["Docker-Content-Digest"]
    except urllib.error.HTTPError:
        return None


SPECIALS = {
    "artifactregistry.projects.locations.repositories.get": get_repository,
    "artifactregistry.projects.locations.repositories.packages.tags.get": get_tag,
    "artifactregistry.projects.locations.repositories.dockerImages.get": get_image,
}
