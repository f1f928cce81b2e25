"""Requests to Google Cloud: as one user, in one project; what fails is a `GcpError`.

All services are reached by the discovery client: one package has their documents, checks a request's
parameters by them, and a new service needs no new dependency.

google-auth finds the credentials. The variables ``CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER`` and its like
lead elsewhere, as with gcloud; an address with ``http://`` needs no credentials.
"""

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

import google.auth
import google.auth.exceptions as auth
import httplib2
from googleapiclient.discovery import build

from kitlib.errors import BadInput
from trainyard_kit.clouds.cloud_errors import ErrorReason
from trainyard_kit.clouds.gke.client_errors import LOGIN, RAISED, GcpError, translate
from trainyard_kit.clouds.gke.token import SCOPES, TOKEN

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

Answer = TypeVar("Answer")
_PATHS = {"compute": "compute/v1/", "storage": "storage/v1/"}  # below the root of the service
_ATTEMPTS, _TIMEOUT, _WORKERS = 3, 60, 8


class GcpSession:
    """Google Cloud, as one user, in one project; usable from many threads.

    Args:
        project: Its id; by default that of ``GOOGLE_CLOUD_PROJECT`` or of the credentials.
        zone: Of the cluster; empty where it does not matter.
    """

    def __init__(self, project: str | None = None, zone: str | None = None) -> None:
        self._services: dict[str, Any] = {}
        self.project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or _usual_project()
        self.zone = zone or ""
        self._lock, self._threads = threading.Lock(), threading.local()

    @property
    def region(self) -> str:
        """The zone's region."""
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
        root = f"projects/{self.project}"
        listed = self.every("cloudscheduler", "projects.locations.list", "locations", name=root)
        has = sorted(location["locationId"] for location in listed)
        return max(
            has, key=lambda region: len(os.path.commonprefix((region, self.region))), default=self.region
        )

    @cached_property
    def number(self) -> str:
        """The project's number."""
        answer = self.rest("cloudresourcemanager", "projects.get", name=f"projects/{self.project}")
        return answer["name"].partition("/")[2]

    @cached_property
    def credentials(self) -> "Credentials":
        """The credentials that google-auth finds; requests count against this project's quota and APIs.

        Without that, a user's requests are those of gcloud's own project, and "API disabled" speaks of it.
        """
        from google.oauth2.credentials import Credentials

        try:
            token = os.environ.get(TOKEN)
            signed = Credentials(token) if token else google.auth.default(scopes=SCOPES)[0]
        except (auth.GoogleAuthError, OSError) as error:
            raise translate(error, "google-auth: default credentials", self.project) from error
        return signed.with_quota_project(self.project) if hasattr(signed, "with_quota_project") else signed

    def rest(self, service: str, method: str, **parameters: object) -> dict[str, Any]:
        """Send a request: a method of a service's discovery document, and its parameters."""
        about = _about(service, method, parameters)
        request = self._request(service, method, parameters, about)
        return self._attempt(lambda: request.execute(http=self._http(service)), about)

    def find(self, service: str, method: str, **parameters: object) -> Any:
        """Send a request about something that may not exist; None if it does not.

        Example:
            >>> session.find("compute", "networks.get", project="p", network="lab")
        """
        try:
            return self.rest(service, method, **parameters)
        except GcpError as error:
            if self._says_absent(error):
                return None
            raise

    def every(self, service: str, method: str, key: str, **parameters: object) -> Iterator[Any]:
        """Yield what all pages of a list hold; nothing where this project has not enabled the API.

        Args:
            key: The member of the answer that is a list, or a mapping of zones and regions to lists.
        """
        collection, _, verb = method.rpartition(".")
        about = _about(service, method, parameters)
        request = self._request(service, method, parameters, about)
        while request is not None:
            try:
                page = self._attempt(partial(request.execute, http=self._http(service)), about)
            except GcpError as error:
                if error.why is ErrorReason.DISABLED and self._says_absent(error):
                    return
                raise
            items = page.get(key) or []
            yield from items.values() if isinstance(items, Mapping) else items
            request = getattr(self._collection(service, collection), f"{verb}_next")(request, page)

    def _says_absent(self, error: GcpError) -> bool:
        """Whether nothing can exist: it is not found, or this very project has not enabled the API."""
        if error.why is ErrorReason.DISABLED:
            return error.consumer == self.project or error.consumer == self.number
        return error.why is ErrorReason.ABSENT

    def empty_bucket(self, bucket: str) -> None:
        """Delete all versions of all objects, several at the same time."""

        def delete(stored: Mapping[str, Any]) -> None:
            version = {"object": stored["name"], "generation": stored.get("generation")}
            self.find("storage", "objects.delete", bucket=bucket, **version)

        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="empty") as pool:
            for _ in pool.map(
                delete, self.every("storage", "objects.list", "items", bucket=bucket, versions=True)
            ):
                pass

    def _collection(self, service: str, path: str) -> Any:
        with self._lock:
            if service not in self._services:
                address, version = endpoint(service), "v3" if service == "cloudresourcemanager" else "v1"
                root = (
                    address
                    if urlsplit(address).path.strip("/")
                    else urljoin(address, f"/{_PATHS.get(service, '')}")
                )
                options = {"api_endpoint": root} if address else None
                plain = httplib2.Http()  # each thread brings its own to each request
                self._services[service] = build(
                    service, version, http=plain, client_options=options, cache_discovery=False
                )
            collection = self._services[service]
        for word in filter(None, path.split(".")):
            collection = getattr(collection, word)()
        return collection

    def _request(self, service: str, method: str, parameters: Mapping[str, Any], about: str) -> Any:
        collection, _, verb = method.rpartition(".")
        try:
            request = getattr(self._collection(service, collection), verb)(**parameters)
        except TypeError as error:  # a value that the discovery document does not allow
            raise translate(error, about, self.project) from error
        if (elsewhere := endpoint(service)) and "media_body" in parameters:  # the library forgets it there
            request.uri = urljoin(elsewhere, urlsplit(request.uri)._replace(scheme="", netloc="").geturl())
        return request

    def _http(self, service: str) -> Any:
        """This thread's connection: httplib2 is not thread-safe."""
        from google_auth_httplib2 import AuthorizedHttp

        kind, cache = "plain" if endpoint(service).startswith("http:") else "signed", self._threads.__dict__
        if kind not in cache:
            plain = httplib2.Http(timeout=_TIMEOUT)
            cache[kind] = AuthorizedHttp(self.credentials, http=plain) if kind == "signed" else plain
        return cache[kind]

    def _attempt(self, call: Callable[[], Answer], about: str) -> Answer:
        """Send a request, again if the network or the service failed: all of the kit's are idempotent."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return call()
            except RAISED as error:
                failure = translate(error, about, self.project)
                if getattr(failure, "why", "") not in (ErrorReason.NETWORK, ErrorReason.FAULT) or not left:
                    raise failure from error
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
        raise BadInput("no project is named", about="Google Cloud", fix=f'project="my-project", or {LOGIN}')
    return project


def _about(service: str, method: str, parameters: Mapping[str, Any]) -> str:
    return " ".join(
        [
            f"{service}: {method}",
            *(parameter for parameter in parameters.values() if isinstance(parameter, str)),
        ]
    )
