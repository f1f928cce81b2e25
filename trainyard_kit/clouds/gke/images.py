"""A cluster's images: its repository in Artifact Registry, and builds by Cloud Build where no engine is.

Pods need no secret: the nodes' account may pull from the repository. Builds run as an account of the
cluster's own, which is created with the cluster; what they log is in the cluster's bucket, and goes with it.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from googleapiclient.http import MediaFileUpload

from kitlib.errors import CommandFailed, Interrupted, KitError
from trainyard_kit.clouds.clock import Clock
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import GcpError
from trainyard_kit.clouds.gke.create import Creation
from trainyard_kit.clouds.gke.operations import POLL
from trainyard_kit.clouds.gke.parts import account, bucket_name, is_ours, parts
from trainyard_kit.clouds.gke.session import GcpSession
from trainyard_kit.clouds.gke.token import access_token
from trainyard_kit.clouds.steps import Steps
from trainyard_kit.clouds.tags import Tags
from trainyard_kit.container_images.registry import BuildRequest, Login, Registry, StoredImage, short_name

FOLDER = "trainyard/builds"  # of the bucket
NEW_RIGHTS_SECONDS = 600  # until Cloud Build knows a new account and its roles
_BUILDS, _REPOSITORIES = "projects.locations.builds", "projects.locations.repositories"
_RUNNING = {"STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING"}
_DENIED = ("does not have", "denied", "forbidden", "permission")


class ArtifactRegistry(Registry):
    """The repository of one cluster."""

    def __init__(self, session: GcpSession, tags: Tags, *, clock: Clock) -> None:
        self.session, self.tags, self.clock = session, tags, clock
        self.repository = parts(session, tags.cluster)["repository"]

    def address(self, name: str) -> str:
        return f"{self._uri()}/{short_name(name)}"

    def login(self) -> Login:
        return Login(self._uri().partition("/")[0], "oauth2accesstoken", access_token()[0])

    def stored(self, name: str, tag: str) -> StoredImage | None:
        image, repository = short_name(name).replace("/", "%2F"), self.repository.id
        tag_found = self._find("packages.tags", f"{repository}/packages/{image}/tags/{tag}")
        if tag_found is None:
            return None
        digest = tag_found["version"].rpartition("/")[2]
        shown = self._find("dockerImages", f"{repository}/dockerImages/{image}@{digest}") or {}
        return StoredImage(digest, int(shown.get("imageSizeBytes", 0)))

    def build(self, order: BuildRequest, *, report: Callable[[str], None]) -> None:
        CloudBuild(self.session, self.tags.cluster, order, report, self.clock).run()

    def _uri(self) -> str:
        item = self.repository.get(self.session)
        if not is_ours(item, self.tags.cluster):
            with Steps(f'repository of cluster "{self.tags.cluster}"', clock=self.clock) as steps:
                Creation(self.session, self.tags, steps).ensure_repository()
            item = self.repository.get(self.session) or {}
        default_uri = (
            f"{self.session.region}-docker.pkg.dev/{self.session.project}/trainyard-{self.tags.cluster}"
        )
        return item.get("registryUri") or default_uri

    def _find(self, collection: str, name: str) -> dict[str, Any] | None:
        return self.session.find("artifactregistry", f"{_REPOSITORIES}.{collection}.get", name=name)


class CloudBuild:
    """The build of one image, followed to its end."""

    def __init__(
        self,
        session: GcpSession,
        cluster: str,
        order: BuildRequest,
        report: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self.session, self.order, self.report, self.clock = session, order, report, clock
        self.bucket, root = bucket_name(session.project, cluster), f"projects/{session.project}"
        self.place = f"{root}/locations/global"
        self.mark = f"context-{cluster}-{time.time_ns()}"  # a tag by which a lost answer's build is found
        self.source = f"{FOLDER}/{self.mark}.zip"
        docker = {
            "name": "gcr.io/cloud-builders/docker",
            "args": [word.replace("$", "$$") for word in order.words],
        }
        self.body = {
            "source": {"storageSource": {"bucket": self.bucket, "object": self.source}},
            "steps": [docker],
            "images": [order.image],
            "serviceAccount": f"{root}/serviceAccounts/{account(session, 'builds', cluster)}",
            "logsBucket": f"gs://{self.bucket}/{FOLDER}",
            "options": {"logging": "GCS_ONLY", "logStreamingOption": "STREAM_ON"},
            "timeout": "3000s",
            "tags": [self.mark],
        }

    def run(self) -> None:
        """Build and push; no source and no running build stays behind."""
        about, bucket = f"image {self.order.image}", self.bucket
        self.report("sending what it is built from")
        try:
            media = MediaFileUpload(str(self.order.archive), mimetype="application/zip")
            self.session.rest("storage", "objects.insert", bucket=bucket, name=self.source, media_body=media)
            ended = self._followed()
        except BaseException as error:
            became = self._cancel()
            if isinstance(error, Interrupted | KeyboardInterrupt):
                what = f"stopped; what Cloud Build had begun {became}"
                raise Interrupted(what, about=about, fix="call it again to build it") from error
            raise
        finally:
            with contextlib.suppress(KitError):  # else it goes with the bucket
                self.session.find("storage", "objects.delete", bucket=bucket, object=self.source)
        if ended["status"] != "SUCCESS":
            raise CommandFailed(
                "\n".join(self._log(ended)[-15:]) or _why(ended),
                about=f"Cloud Build {ended['id']}, {about}",
                fix=f"fix the Dockerfile; all that it wrote: {ended.get('logUrl', 'its log')}",
            )

    def _followed(self) -> dict[str, Any]:
        """Follow a build to its end; for ten minutes, one that lacks rights is begun again."""
        end = self.clock.now() + NEW_RIGHTS_SECONDS
        while True:
            try:
                ended = self._end_of(self._begin())
                words, late = _why(ended), self.clock.now() >= end
                if ended["status"] == "SUCCESS" or late or not any(word in words for word in _DENIED):
                    return ended
            except GcpError as error:
                why = (ErrorReason.DENIED, ErrorReason.UNKNOWN_ACCOUNT)
                if error.why not in why or self.clock.now() >= end:
                    raise
                words = error.what
            self.report(f"Cloud Build does not know the new rights yet: {words}"[:120])
            self.clock.sleep(3 * POLL)

    def _begin(self) -> str:
        operation = self.session.rest("cloudbuild", f"{_BUILDS}.create", parent=self.place, body=self.body)
        first = operation["metadata"]["build"]["id"]
        self._cancel(but=first)  # of several, because a request without an answer is sent again
        return first

    def _end_of(self, number: str) -> dict[str, Any]:
        while True:
            now = self.session.rest("cloudbuild", f"{_BUILDS}.get", name=f"{self.place}/builds/{number}")
            if now["status"] not in _RUNNING:
                return now
            lines = self._log(now) or [now["status"].lower()]
            self.report(f"Cloud Build: {lines[-1]}"[:120])
            self.clock.sleep(POLL)

    def _cancel(self, *, but: str = "") -> str:
        """Cancel the builds of this request that run; returns what became of them."""
        try:
            same = {"parent": self.place, "filter": f'tags="{self.mark}"'}
            for build in self.session.every("cloudbuild", f"{_BUILDS}.list", "builds", **same):
                if build["status"] in _RUNNING and build["id"] != but:
                    name = f"{self.place}/builds/{build['id']}"
                    self.session.find("cloudbuild", f"{_BUILDS}.cancel", name=name, body={})
        except KitError as error:
            return f"may go on, and cost: {error.what}"
        return "was cancelled"

    def _log(self, build: dict[str, Any]) -> list[str]:
        where = {"bucket": self.bucket, "object": f"{FOLDER}/log-{build['id']}.txt"}
        content = self.session.find("storage", "objects.get_media", **where) or b""
        return [line for line in content.decode(errors="replace").splitlines() if line.strip()]


def _why(ended: dict[str, Any]) -> str:
    detail = ended.get("statusDetail") or (ended.get("failureInfo") or {}).get("detail")
    return detail or f"its status is {ended['status']}"
