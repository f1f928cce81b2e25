"""Requests to Google Cloud's REST APIs: as one user, in one project; what fails is a `GcpError`.

google-auth finds the credentials. The variables ``CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER`` and its like
lead elsewhere, as with gcloud; an address with ``http://`` needs no credentials.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google.auth
import google.auth.exceptions as auth
import requests
from google.auth.credentials import Credentials
from google.auth.transport.requests import AuthorizedSession

from kitlib.errors import BadInput
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import LOGIN, GcpError, refused, translate
from trainyard_kit.clouds.gke.token import SCOPES, TOKEN

_ROOTS = {  # of the others https://SERVICE.googleapis.com/, with the version before each path
    "compute": "https://compute.googleapis.com/compute/v1/",
    "storage": "https://storage.googleapis.com/storage/v1/",
}
_ATTEMPTS, _TIMEOUT, _WORKERS = 3, 60, 8


class GcpSession:
    """Google Cloud, as one user, in one project; usable from many threads.

    Args:
        project: Its id; by default that of ``GOOGLE_CLOUD_PROJECT`` or of the credentials.
        zone: Of the cluster; empty where it does not matter.

    Example:
        >>> session.find("compute", "projects/p/global/networks/lab")
    """

    def __init__(self, project: str | None = None, zone: str | None = None) -> None:
        self.project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or _usual_project()
        self.zone = zone or ""
        self._plain = requests.Session()

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    @property
    def parent(self) -> str:
        """The parent of the zone's clusters: ``projects/P/locations/Z``."""
        return f"projects/{self.project}/locations/{self.zone}"

    def at(self, zone: str) -> "GcpSession":
        """The same session in another zone."""
        session = copy.copy(self)
        session.zone = zone
        session.__dict__.pop("scheduler_region", None)
        return session

    @cached_property
    def scheduler_region(self) -> str:
        """The region of the schedules: the zone's, or that of the most similar name where it has none."""
        listed = self.every("cloudscheduler", f"projects/{self.project}/locations", "locations")
        has = sorted(location["locationId"] for location in listed)
        return max(
            has, key=lambda region: len(os.path.commonprefix((region, self.region))), default=self.region
        )

    @cached_property
    def number(self) -> str:
        """The project's number."""
        answer = self.request("GET", "cloudresourcemanager", f"projects/{self.project}")
        return answer["name"].partition("/")[2]

    @cached_property
    def credentials(self) -> Credentials:
        """The credentials that google-auth finds; requests count against this project's quota and APIs.

        Without that, a user's requests are those of gcloud's own project, and "API disabled" speaks of it.
        """
        from google.oauth2.credentials import Credentials as Token

        try:
            token = os.environ.get(TOKEN)
            signed = Token(token) if token else google.auth.default(scopes=SCOPES)[0]
        except (auth.GoogleAuthError, OSError) as error:
            raise translate(error, "google-auth: default credentials", self.project) from error
        return signed.with_quota_project(self.project) if hasattr(signed, "with_quota_project") else signed

    @cached_property
    def _signed(self) -> requests.Session:
        return AuthorizedSession(self.credentials)

    def request(
        self, verb: str, service: str, path: str, body: object = None, **query: str | bool | int | list[str]
    ) -> dict[str, Any]:
        """Send a request, and return the answer.

        Args:
            verb: Of HTTP: ``GET``, ``POST``, ``PUT``, ``PATCH``, ``DELETE``.
            service: The name of its host: ``compute``.
            path: Below the version of the API: ``projects/P/zones``.
            body: Sent as JSON; a path of a file is sent as its content.
            query: Parameters of the URL.
        """
        root = endpoint(service) or _ROOTS.get(service, f"https://{service}.googleapis.com/")
        if service not in _ROOTS:
            root += "v3/" if service == "cloudresourcemanager" else "v1/"
        if isinstance(body, Path):
            root = root.replace("/storage/", "/upload/storage/")
        about = f"{service}: {verb} {path}"

        def send() -> dict[str, Any]:
            content = {"data": body.read_bytes()} if isinstance(body, Path) else {"json": body}
            client = self._plain if root.startswith("http:") else self._signed
            reply = client.request(verb, root + path, params=query, timeout=_TIMEOUT, **content)
            if not reply.ok:
                raise refused(reply, about, self.project)
            answer: dict[str, Any] = reply.json() if reply.content else {}
            return answer

        return self._attempt(send, about)

    def find(self, service: str, path: str, verb: str = "GET", body: object = None) -> dict[str, Any] | None:
        """Send a request about something that may not exist; None if it does not."""
        try:
            return self.request(verb, service, path, body)
        except GcpError as error:
            if self._says_absent(error):
                return None
            raise

    def every(self, service: str, path: str, key: str, **query: str) -> Iterator[Any]:
        """Yield what all pages of a list hold; nothing where this project has not enabled the API.

        Args:
            service: As for `request`.
            path: The same.
            key: The member of the answer that is a list, or a mapping of zones and regions to lists.
            query: As for `request`.
        """
        token: dict[str, str] | None = {}
        while token is not None:
            try:
                page = self.request("GET", service, path, **query, **token)
            except GcpError as error:
                if error.why is ErrorReason.DISABLED and self._says_absent(error):
                    return
                raise
            items = page.get(key) or []
            yield from items.values() if isinstance(items, Mapping) else items
            token = {"pageToken": page["nextPageToken"]} if page.get("nextPageToken") else None

    def _says_absent(self, error: GcpError) -> bool:
        """Whether nothing can exist: it is not found, or this very project has not enabled the API."""
        if error.why is ErrorReason.DISABLED:
            return error.consumer == self.project or error.consumer == self.number
        return error.why is ErrorReason.ABSENT

    def empty_bucket(self, bucket: str) -> None:
        """Delete all versions of all objects, several at the same time."""

        def delete(stored: Mapping[str, Any]) -> None:
            version = f"?generation={stored['generation']}" if "generation" in stored else ""
            self.find("storage", f"b/{bucket}/o/{quote(stored['name'], safe='')}{version}", "DELETE")

        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="empty") as pool:
            list(pool.map(delete, self.every("storage", f"b/{bucket}/o", "items", versions="true")))

    def _attempt(self, call: Callable[[], dict[str, Any]], about: str) -> dict[str, Any]:
        """Send a request, again if the network or the service failed: all of the kit's are idempotent."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return call()
            except (GcpError, auth.GoogleAuthError, OSError) as error:
                failure = error if isinstance(error, GcpError) else translate(error, about, self.project)
                if failure.why not in (ErrorReason.NETWORK, ErrorReason.FAULT) or not left:
                    raise failure from error.__cause__ or error
                time.sleep(0.2 * 2 ** (_ATTEMPTS - left))
        raise AssertionError


def endpoint(service: str) -> str:
    """The endpoint that overrides Google's; empty if none does."""
    return os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")


def _usual_project() -> str:
    try:
        project = google.auth.default(scopes=SCOPES)[1]
    except auth.GoogleAuthError:
        project = None
    if not project:
        raise BadInput("no project is named", about="Google Cloud", fix=f'`project="my-project"`, or {LOGIN}')
    return project
