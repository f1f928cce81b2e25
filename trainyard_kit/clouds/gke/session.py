"""Requests to Google Cloud's REST APIs, as one user in one project; failures are raised as `GcpError`.

google-auth finds the credentials. Variables such as ``CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER`` replace
endpoints, as with gcloud; an ``http://`` endpoint needs no credentials.
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
from trainyard_kit.clouds.gke.client_errors import LOGIN, GcpError, from_response, translate
from trainyard_kit.clouds.gke.token import SCOPES, TOKEN

_ROOTS = {  # with the version; the others are at https://SERVICE.googleapis.com/
    "compute": "https://compute.googleapis.com/compute/v1/",
    "storage": "https://storage.googleapis.com/storage/v1/",
}
_ATTEMPTS, _TIMEOUT, _WORKERS = 3, 60, 8


class GcpSession:
    """A thread-safe session of one user in one project.

    Args:
        project: Its id; by default that of ``GOOGLE_CLOUD_PROJECT`` or of the credentials.
        zone: Of the cluster; empty if the zone is not needed.

    Example:
        >>> session.find("compute", "projects/p/global/networks/lab")
    """

    def __init__(self, project: str | None = None, zone: str | None = None) -> None:
        self.project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or _default_project()
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
        """Return the same session in another zone."""
        session = copy.copy(self)
        session.zone = zone
        session.__dict__.pop("scheduler_region", None)
        return session

    @cached_property
    def scheduler_region(self) -> str:
        """The region of the schedules: the zone's, or one with the most similar name if it has none."""
        listed = self.paginate("cloudscheduler", f"projects/{self.project}/locations", "locations")
        regions = sorted(location["locationId"] for location in listed)
        return max(
            regions, key=lambda region: len(os.path.commonprefix((region, self.region))), default=self.region
        )

    @cached_property
    def number(self) -> str:
        """The project's number."""
        answer = self.request("GET", "cloudresourcemanager", f"projects/{self.project}")
        return answer["name"].partition("/")[2]

    @cached_property
    def credentials(self) -> Credentials:
        """google-auth's credentials, with this project as the quota project.

        Without one, a user's requests count for gcloud's own project, and "API disabled" is about that one.
        """
        from google.oauth2.credentials import Credentials as Token

        try:
            token = os.environ.get(TOKEN)
            credentials = Token(token) if token else google.auth.default(scopes=SCOPES)[0]
        except (auth.GoogleAuthError, OSError) as error:
            raise translate(error, "google-auth: default credentials", self.project) from error
        with_project = getattr(credentials, "with_quota_project", None)
        return with_project(self.project) if with_project else credentials

    @cached_property
    def _authorized(self) -> requests.Session:
        return AuthorizedSession(self.credentials)

    def request(
        self, verb: str, service: str, path: str, body: object = None, **query: str | bool | int | list[str]
    ) -> dict[str, Any]:
        """Send a request, and return the response's JSON.

        Args:
            verb: The HTTP method: ``GET``, ``POST``, ``PUT``, ``PATCH``, ``DELETE``.
            service: The first label of the host name: ``compute``.
            path: Below the version of the API: ``projects/P/zones``.
            body: Sent as JSON; for a `Path` the file's content is sent.
            query: URL parameters.
        """
        root = endpoint(service) or _ROOTS.get(service, f"https://{service}.googleapis.com/")
        if service not in _ROOTS:
            root += "v3/" if service == "cloudresourcemanager" else "v1/"
        if isinstance(body, Path):
            root = root.replace("/storage/", "/upload/storage/")
        about = f"{service}: {verb} {path}"

        def send() -> dict[str, Any]:
            content = {"data": body.read_bytes()} if isinstance(body, Path) else {"json": body}
            client = self._plain if root.startswith("http:") else self._authorized
            reply = client.request(verb, root + path, params=query, timeout=_TIMEOUT, **content)
            if not reply.ok:
                raise from_response(reply, about, self.project)
            answer: dict[str, Any] = reply.json() if reply.content else {}
            return answer

        return self._attempt(send, about)

    def find(self, service: str, path: str, verb: str = "GET", body: object = None) -> dict[str, Any] | None:
        """Send a request about a resource; None if it does not exist."""
        try:
            return self.request(verb, service, path, body)
        except GcpError as error:
            if self._is_absent(error):
                return None
            raise

    def paginate(self, service: str, path: str, key: str, **query: str) -> Iterator[Any]:
        """Yield the items of all pages of a list; nothing if this project has not enabled the API.

        Args:
            service: As for `request`.
            path: As for `request`.
            key: The field that has the items, as a list or by zone and region.
            query: As for `request`.
        """
        token: dict[str, str] | None = {}
        while token is not None:
            try:
                page = self.request("GET", service, path, **query, **token)
            except GcpError as error:
                if error.reason is ErrorReason.DISABLED and self._is_absent(error):
                    return
                raise
            items = page.get(key) or []
            yield from items.values() if isinstance(items, Mapping) else items
            token = {"pageToken": page["nextPageToken"]} if page.get("nextPageToken") else None

    def _is_absent(self, error: GcpError) -> bool:
        """Whether the resource does not exist, or cannot because this project has not enabled the API."""
        if error.reason is ErrorReason.DISABLED:
            return error.consumer == self.project or error.consumer == self.number
        return error.reason is ErrorReason.ABSENT

    def empty_bucket(self, bucket: str) -> None:
        """Delete all versions of all objects, concurrently."""

        def delete(item: Mapping[str, Any]) -> None:
            version = f"?generation={item['generation']}" if "generation" in item else ""
            self.find("storage", f"b/{bucket}/o/{quote(item['name'], safe='')}{version}", "DELETE")

        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="empty") as pool:
            list(pool.map(delete, self.paginate("storage", f"b/{bucket}/o", "items", versions="true")))

    def _attempt(self, call: Callable[[], dict[str, Any]], about: str) -> dict[str, Any]:
        """Send a request, again if the network or the service failed: all requests are idempotent."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return call()
            except (GcpError, auth.GoogleAuthError, OSError) as error:
                failure = error if isinstance(error, GcpError) else translate(error, about, self.project)
                if failure.reason not in (ErrorReason.NETWORK, ErrorReason.FAULT) or not left:
                    raise failure from error.__cause__ or error
                time.sleep(0.2 * 2 ** (_ATTEMPTS - left))
        raise AssertionError


def endpoint(service: str) -> str:
    """The endpoint that replaces Google's; empty if none is set."""
    return os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")


def _default_project() -> str:
    try:
        project = google.auth.default(scopes=SCOPES)[1]
    except auth.GoogleAuthError:
        project = None
    if not project:
        raise BadInput("no project is given", about="Google Cloud", fix=f'`project="my-project"`, or {LOGIN}')
    return project
