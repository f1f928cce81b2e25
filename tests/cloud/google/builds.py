"""Cloud Build, and the images that it pushes to Artifact Registry.

Nothing is built; whether the source exists, and whether the account may read it and push, is checked.
"""

import hashlib
import uuid
from datetime import timedelta

from . import iam, storage
from .api_errors import ApiError
from .rest import Request, Rest, timestamp

BYTES = 1234  # of every image
# What counts of https://cloud.google.com/storage/docs/access-control/iam-roles and Artifact Registry's
_BUCKET = {"roles/storage.objectUser", "roles/storage.objectAdmin", "roles/storage.admin"}
_PUSH = {"roles/artifactregistry.writer", "roles/artifactregistry.admin"}


def create(rest: Rest, request: Request) -> dict:
    """Begin a build, as an account of the project's own."""
    clock, number, given = rest.world.clock, str(uuid.uuid4()), request.body
    iam.check_act_as(rest, given.get("serviceAccount", ""))
    if "logsBucket" not in given:
        raise ApiError("INVALID_ARGUMENT", "with 'build.service_account', specify 'build.logs_bucket'")
    body = {**given, "id": number, "name": f"{request.path}/{number}", "status": "QUEUED"}
    body |= {"projectId": request.project, "createTime": timestamp(clock.date())}
    body["logUrl"] = f"https://console.cloud.google.com/cloud-build/builds/{number}?project={request.project}"
    rest.store.put("cloudbuild", body["name"], body, given=True)  # a record, which costs nothing

    def work() -> None:
        if body["status"] == "QUEUED":
            body["status"] = "WORKING"
            _log(rest, body, "FETCHSOURCE", "Step 1/2 : FROM scratch")

    def done() -> dict:
        if body["status"] == "CANCELLED":
            return body
        if why := _why_not(rest, body):
            return _end(rest, body, "FAILURE", why)
        images = [{"name": image, "digest": _push(rest, image)} for image in body.get("images", ())]
        body["results"] = {"images": images}
        return _end(rest, body, "SUCCESS", "DONE")

    def failed(failure) -> None:
        if body["status"] != "CANCELLED":
            _end(rest, body, "FAILURE", failure.message)

    clock.after(rest.world.delays["start"], work)
    operation = rest.begin(request, body["name"], done=done, failed=failed)
    return operation | {"metadata": {"build": dict(body)}}


def cancel(rest: Rest, request: Request) -> dict:
    """End a build early."""
    body = rest.store.get("cloudbuild", request.path.removesuffix(":cancel")).body
    if body["status"] not in ("QUEUED", "WORKING"):
        raise ApiError("FAILED_PRECONDITION", "Build is not cancellable.")
    return _end(rest, body, "CANCELLED", "CANCELLED")


def _why_not(rest: Rest, body: dict) -> str:
    """Why a build fails: its source does not exist, or its account may not use a thing yet."""
    source, member = body["source"]["storageSource"], body["serviceAccount"].rpartition("/")[2]
    if not rest.store.has("storage", storage.object_path(source["bucket"], source["object"])):
        return f"could not resolve source: googleapi: Error 404: No such object: {source['object']}"
    places = [("storage", f"b/{source['bucket']}", _BUCKET, "storage.objects.get")]
    push = "artifactregistry.repositories.uploadArtifacts"
    places += [("artifactregistry", _repository(image), _PUSH, push) for image in body.get("images", ())]
    since = rest.world.clock.date() - timedelta(seconds=rest.world.delays["policy"])
    for service, path, roles, permission in places:
        bindings = rest.store.get(service, path).policy_at(since).get("bindings", ())
        given = {binding["role"] for binding in bindings if f"serviceAccount:{member}" in binding["members"]}
        if not given & roles:
            return f"{member} does not have {permission} access to {path}. Permission '{permission}' denied."
    return ""


def _end(rest: Rest, body: dict, status: str, words: str) -> dict:
    body.update(status=status, finishTime=timestamp(rest.world.clock.date()))
    if status == "FAILURE":
        body["statusDetail"] = words
    _log(rest, body, words)
    return body


def _log(rest: Rest, body: dict, *lines: str) -> None:
    """Write to a build's log, which is an object of a bucket."""
    bucket, _, folder = body["logsBucket"].removeprefix("gs://").partition("/")
    if rest.store.has("storage", f"b/{bucket}"):
        name = f"{folder}/log-{body['id']}.txt".lstrip("/")
        path = storage.object_path(bucket, name)
        said = rest.store.get("storage", path).body[storage.MEDIA] if rest.store.has("storage", path) else b""
        storage.put(rest, bucket, name, said + "".join(f"{line}\n" for line in lines).encode())


# Artifact Registry


def get_repository(rest: Rest, request: Request) -> dict:
    """A repository with its address."""
    _, project, _, place, _, name = request.path.split("/")
    body = rest.store.get("artifactregistry", request.path).body
    return body | {"registryUri": f"{place}-docker.pkg.dev/{project}/{name}"}


def get_image(rest: Rest, request: Request) -> dict:
    """An image's metadata: of each the same."""
    return {"name": request.path, "imageSizeBytes": str(BYTES)}


def _push(rest: Rest, image: str) -> str:
    name, _, tag = image.rpartition(":")
    digest = f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"
    package = f"{_repository(image)}/packages/{'%2F'.join(name.split('/')[3:])}"
    path = f"{package}/tags/{tag}"
    rest.store.put("artifactregistry", path, {"name": path, "version": f"{package}/versions/{digest}"})
    return digest


def _repository(image: str) -> str:
    """The repository of an image: ``us-central1-docker.pkg.dev/p/r/image:tag``."""
    host, project, name = image.split("/")[:3]
    return f"projects/{project}/locations/{host.partition('-docker')[0]}/repositories/{name}"


_REPOSITORIES = "artifactregistry.projects.locations.repositories"
SPECIALS = {
    "cloudbuild.projects.locations.builds.create": create,
    "cloudbuild.projects.locations.builds.cancel": cancel,
    f"{_REPOSITORIES}.get": get_repository,
    f"{_REPOSITORIES}.dockerImages.get": get_image,
}
