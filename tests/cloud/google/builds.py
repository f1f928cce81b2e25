"""Cloud Build: builds that take their time and succeed, or fail as a test wants. Nothing is built; that the
source is there, and that the account may read it, write the log and push, is looked at.
"""

import uuid

from . import images
from .api_errors import ApiError
from .operations import timestamp
from .rest import Request, Rest
from .storage import MEDIA

# What counts of https://cloud.google.com/storage/docs/access-control/iam-roles and Artifact Registry's
_BUCKET = {"roles/storage.objectUser", "roles/storage.objectAdmin", "roles/storage.admin"}
_PUSH = {"roles/artifactregistry.writer", "roles/artifactregistry.admin"}


def create(rest: Rest, request: Request) -> dict:
    """Begin a build."""
    clock, number = rest.world.clock, str(uuid.uuid4())
    given = request.body
    if given.get("serviceAccount") and "logsBucket" not in given:
        raise ApiError(
            "INVALID_ARGUMENT",
            "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', "
            "or (b) use CLOUD_LOGGING_ONLY or NONE",
        )
    body = {
        **given,
        "id": number,
        "name": f"{request.path}/{number}",
        "projectId": request.project,
        "status": "QUEUED",
        "createTime": timestamp(clock.now),
        "logUrl": f"https://console.cloud.google.com/cloud-build/builds/{number}?project={request.project}",
    }
    rest.store.put("cloudbuild", body["name"], body, given=True)  # a record, which costs nothing

    def work() -> None:
        if body["status"] == "QUEUED":
            body["status"] = "WORKING"
            _log(rest, body, "FETCHSOURCE", "Step 1/2 : FROM scratch")

    def done() -> dict:
        if body["status"] == "CANCELLED":
            return body
        if why := _why_not(rest, body):
            _end(rest, body, "FAILURE", why)
            return body
        digests = [{"name": each, "digest": images.push(rest, each)} for each in body.get("images", ())]
        body["results"] = {"images": digests}
        _end(rest, body, "SUCCESS", "DONE")
        return body

    def failed(failure) -> None:
        if body["status"] != "CANCELLED":
            _end(rest, body, "FAILURE", failure.message)

    clock.after(rest.world.delays["start"], work)
    operation = rest.begin(request, body["name"], done=done, failed=failed)
    operation["metadata"]["build"] = dict(body)
    return operation


def cancel(rest: Rest, request: Request) -> dict:
    """End a build early."""
    body = rest.store.get("cloudbuild", request.path.removesuffix(":cancel")).body
    if body["status"] not in ("QUEUED", "WORKING"):
        raise ApiError("FAILED_PRECONDITION", "Build is not cancellable.")
    _end(rest, body, "CANCELLED", "CANCELLED")
    return body


def _why_not(rest: Rest, body: dict) -> str:
    """Return why a build cannot be: its source is not there, or its account may not."""
    source, account = body["source"]["storageSource"], body.get("serviceAccount", "")
    bucket, member = f"b/{source['bucket']}", f"serviceAccount:{account.rpartition('/')[2]}"
    if not rest.store.has("storage", f"{bucket}/o/{source['object'].replace('/', '%2F')}"):
        return f"could not resolve source: googleapi: Error 404: No such object: {source['object']}"
    places = [("storage", bucket, _BUCKET)]
    places += [("artifactregistry", images.repository(each), _PUSH) for each in body.get("images", ())]
    for service, path, roles in places:
        bindings = rest.store.get(service, path).policy.get("bindings", ())
        if not any(each["role"] in roles and member in each.get("members", ()) for each in bindings):
            return f"{member} does not have what {path} asks for: one of {', '.join(sorted(roles))}"
    return ""


def _end(rest: Rest, body: dict, status: str, words: str) -> None:
    body.update(status=status, finishTime=timestamp(rest.world.clock.now))
    if status == "FAILURE":
        body["statusDetail"] = words
    _log(rest, body, words)


def _log(rest: Rest, body: dict, *lines: str) -> None:
    """Write to a build's log, which is an object of a bucket."""
    bucket, _, folder = body.get("logsBucket", "").removeprefix("gs://").partition("/")
    if not rest.store.has("storage", f"b/{bucket}"):
        return
    name = f"{folder}/log-{body['id']}.txt".lstrip("/")
    path = f"b/{bucket}/o/{name.replace('/', '%2F')}"
    said = rest.store.get("storage", path).body[MEDIA] if rest.store.has("storage", path) else b""
    said += "".join(f"{each}\n" for each in lines).encode()
    rest.store.put("storage", path, {"name": name, "bucket": bucket, "generation": "1", MEDIA: said})


SPECIALS = {
    "cloudbuild.projects.builds.create": create,
    "cloudbuild.projects.locations.builds.create": create,
    "cloudbuild.projects.locations.builds.cancel": cancel,
}
