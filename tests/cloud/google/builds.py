"""Cloud Build: builds that take their time and succeed, or fail as a test wants. Nothing is built."""

import uuid

from .operations import timestamp
from .rest import Request, Rest


def create(rest: Rest, request: Request) -> dict:
    """Begin a build."""
    clock, number = rest.world.clock, str(uuid.uuid4())
    images = [
        {"name": each, "digest": f"sha256:{uuid.uuid4().hex * 2}"} for each in request.body.get("images", ())
    ]
    body = {
        **request.body,
        "id": number,
        "projectId": request.project,
        "status": "WORKING",
        "createTime": timestamp(clock.now),
        "logUrl": f"https://console.cloud.google.com/cloud-build/builds/{number}?project={request.project}",
    }
    rest.store.put(
        "cloudbuild", f"{request.path}/{number}", body, given=True
    )  # a record, which costs nothing

    def done() -> dict:
        body.update(status="SUCCESS", finishTime=timestamp(clock.now), results={"images": images})
        return body

    def failed(failure) -> None:
        body.update(status="FAILURE", statusDetail=failure.message, finishTime=timestamp(clock.now))

    operation = rest.begin(request, f"{request.path}/{number}", done=done, failed=failed)
    operation["metadata"]["build"] = body
    return operation


SPECIALS = {
    "cloudbuild.projects.builds.create": create,
    "cloudbuild.projects.locations.builds.create": create,
}
