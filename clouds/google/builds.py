"""Building an image with Cloud Build, for machines without a container engine: the account, its rights, one
build that is followed to its end.

The account is made when it is first needed, has rights on the cluster's bucket and repository alone, and goes
with the cluster, as do the logs: they are in the bucket.
"""

import time
from collections.abc import Callable
from pathlib import Path

from googleapiclient.http import MediaFileUpload

from clouds.google.accounts import BUILDS, ServiceAccount
from clouds.google.registry import BuildsPush
from clouds.google.session import GcpSession, find
from clouds.google.storage import BuildsFiles, bucket_name
from clouds.image_builds import BuildSource, follow
from clouds.reconciler.clock import Clock
from clouds.reconciler.resource import ABSENT, Resource, ResourceState, ResourceStatus
from clouds.tags import Tags
from kitlib.clusters.image_registry import BuildRequest
from kitlib.errors import CommandFailed

FOLDER = "trainyard/builds"  # of the bucket
DOCKER = "gcr.io/cloud-builders/docker"
LONGEST = "3000s"
LAST_LINES = 15
_BUILDS = "projects.locations.builds"
_RUNNING = {"STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING"}


def build(
    session: GcpSession,
    tags: Tags,
    order: BuildRequest,
    *,
    report: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Build an image and push it; returns when it is in its repository.

    Args:
        session: The way into the cluster's project.
        tags: Whose the cluster is.
        order: What from.
        report: Told what Cloud Build wrote last.
        clock: Of the waiting; by default the one on the wall.

    Raises:
        CommandFailed: The build failed; the error has its last lines.
        Interrupted: The user stopped it; the build was cancelled.
    """
    about, bucket = f"image {order.image}", bucket_name(session.project, tags.cluster)
    mark = f"context-{tags.cluster}-{time.time_ns()}"
    source = f"{FOLDER}/{mark}.zip"
    account = ServiceAccount(session, tags, BUILDS)
    account.depends_on = ()
    one = CloudBuild(session, body(account, bucket, source, order, mark=mark), mark=mark)

    follow(
        one,
        [account, BuildsFiles(session, tags), BuildsPush(session, tags)],
        BuildSource(
            send=lambda: _send(session, bucket, source, order.archive),
            drop=lambda: find(session.rest, "storage", "objects.delete", bucket=bucket, object=source),
        ),
        service="Cloud Build",
        stopped="was cancelled",
        about=about,
        report=report,
        clock=clock,
    )
    if one.ended["status"] != "SUCCESS":
        raise CommandFailed(
            "\n".join(one.log()[-LAST_LINES:]) or _why(one.ended),
            about=f"Cloud Build {one.id}, {about}",
            fix=f"fix the Dockerfile; all that it wrote: {one.ended.get('logUrl', 'its log')}",
        )


def body(account: ServiceAccount, bucket: str, source: str, order: BuildRequest, *, mark: str) -> dict:
    """Build the body of the request."""
    values = [f"--build-arg={key}={value}" for key, value in order.arguments.items()]
    words = ["build", f"--file={order.dockerfile}", f"--tag={order.image}", *values, "."]
    return {
        "source": {"storageSource": {"bucket": bucket, "object": source}},
        "steps": [{"name": DOCKER, "args": [each.replace("$", "$$") for each in words]}],
        "images": [order.image],
        "serviceAccount": account.id,
        "logsBucket": f"gs://{bucket}/{FOLDER}",
        "options": {"logging": "GCS_ONLY", "logStreamingOption": "STREAM_ON"},
        "timeout": LONGEST,
        "tags": [mark],
    }


class CloudBuild(Resource):
    """One build, which is ready when it has ended, however that was.

    Args:
        session: The way into its project.
        body: What is asked for.
        mark: A tag that no other build has, by which it is found if the answer to the request was lost.

    Attributes:
        id: Cloud Build's name of it; empty before it is known.
        ended: How it ended, as the API shows it.
    """

    name, kind = "image build", "cloudbuild.googleapis.com/Build"
    depends_on = (BuildsFiles.name, BuildsPush.name)
    expected = 1000.0  # most of it is the base, which has gigabytes

    def __init__(self, session: GcpSession, body: dict, *, mark: str) -> None:
        self.session, self.body, self.mark = session, body, mark
        self.place = f"projects/{session.project}/locations/global"
        self.id, self.asked = "", False
        self.ended: dict = {}

    def describe(self) -> ResourceStatus:
        if not self.id:
            return ABSENT
        now = self.session.rest("cloudbuild", f"{_BUILDS}.get", name=f"{self.place}/builds/{self.id}")
        if now["status"] not in _RUNNING:
            self.ended = now
            return ResourceStatus(ResourceState.READY, self.id)
        said = self.log() or [now["status"].lower()]
        return ResourceStatus(ResourceState.PENDING, self.id, f"Cloud Build: {said[-1]}"[:120])

    def create(self) -> None:
        """Begin it; of several, because a request without an answer is sent again, one stays."""
        known = self._begun() if self.asked else []
        if not known:
            self.asked = True
            begun = self.session.rest("cloudbuild", f"{_BUILDS}.create", parent=self.place, body=self.body)
            first = begun["metadata"]["build"]["id"]
            known = [first, *(each for each in self._begun() if each != first)]
        self.id = known[0]
        for each in known[1:]:
            self._cancel(each)

    def delete(self) -> None:
        if not self.ended:
            for each in self._begun() if self.asked else ():
                self._cancel(each)

    def _begun(self) -> list[str]:
        same = {"parent": self.place, "filter": f'tags="{self.mark}"'}
        found = self.session.every("cloudbuild", f"{_BUILDS}.list", "builds", **same)
        return [each["id"] for each in found if each["status"] in _RUNNING]

    def _cancel(self, number: str) -> None:
        name = f"{self.place}/builds/{number}"
        find(self.session.rest, "cloudbuild", f"{_BUILDS}.cancel", name=name, body={})

    def log(self) -> list[str]:
        """Return the lines that it has written so far."""
        bucket, _, folder = self.body["logsBucket"].removeprefix("gs://").partition("/")
        where = {"bucket": bucket, "object": f"{folder}/log-{self.id}.txt"}
        said = find(self.session.rest, "storage", "objects.get_media", **where)
        return [each for each in (said or b"").decode(errors="replace").splitlines() if each.strip()]


def _send(session: GcpSession, bucket: str, name: str, file: Path) -> None:
    media = MediaFileUpload(str(file), mimetype="application/zip")
    session.rest("storage", "objects.insert", bucket=bucket, name=name, media_body=media)


def _why(ended: dict) -> str:
    said = ended.get("statusDetail") or (ended.get("failureInfo") or {}).get("detail")
    return said or f"its status is {ended['status']}"
