"""One user's way into one project of Google Cloud: requests to the container API over gRPC and to the others
over HTTP; what goes wrong in the kit's words.

Which credentials win is google-auth's business. Where the services are can be said as for gcloud, by
``CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER`` and the like; at an address with ``http://`` nobody signs in.
"""

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from urllib.parse import urljoin, urlsplit

import google.api_core.exceptions as api
import google.auth
import google.auth.exceptions as auth
import httplib2
from googleapiclient.discovery import build
from googleapiclient.errors import Error as ClientError

from clouds.google.client_errors import LOGIN, ErrorReason, GcpError, translate
from clouds.google.token import SCOPE, TOKEN
from kitlib.errors import BadInput

SCOPES = (SCOPE,)
VERSIONS = {"cloudresourcemanager": "v3", "serviceusage": "v1"}  # of the others: v1
_PATHS = {"compute": "compute/v1/", "storage": "storage/v1/"}  # below the root of the service
_ATTEMPTS = 3
_TIMEOUT = 60
_RAISED = (
    api.GoogleAPICallError,
    api.RetryError,
    auth.GoogleAuthError,
    ClientError,
    httplib2.HttpLib2Error,
    OSError,
)


class GcpSession:
    """Google Cloud, as one user, in one project; for use by many threads.

    Args:
        project: Its id; by default that of the credentials or of ``GOOGLE_CLOUD_PROJECT``.
        zone: Where machines are; None where it does not matter.

    Raises:
        BadInput: No project is named, and none goes with the credentials.

    Example:
        >>> session = GcpSession("my-project", "us-central1-c")
        >>> session.rest("compute", "zones.get", project=session.project, zone=session.zone)["status"]
        'UP'
    """

    def __init__(self, project: str | None = None, zone: str | None = None) -> None:
        self.project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or self._usual_project()
        self.zone = zone
        self._lock = threading.Lock()
        self._services: dict[str, object] = {}
        self._threads = threading.local()

    @property
    def region(self) -> str:
        """The zone's region."""
        return region_of(self.zone)

    @property
    def place(self) -> str:
        """What clusters of this zone are under: ``projects/P/locations/Z``."""
        return f"projects/{self.project}/locations/{self.zone}"

    def at(self, zone: str | None) -> "GcpSession":
        """Return the way into another zone of the project, over the same connections."""
        other = copy.copy(self)
        other.zone = zone
        return other

    @cached_property
    def number(self) -> str:
        """The project's number, by which identities of pods are named."""
        found = self.rest("cloudresourcemanager", "projects.get", name=f"projects/{self.project}")
        return found["name"].partition("/")[2]

    @cached_property
    def credentials(self):
        """The credentials as google-auth finds them.

        Raises:
            GcpError: There are none.
        """
        if token := os.environ.get(TOKEN):
            from google.oauth2.credentials import Credentials

            return Credentials(token)
        try:
            return google.auth.default(scopes=SCOPES)[0]
        except (auth.GoogleAuthError, OSError) as error:
            raise translate(error, "google-auth: default credentials", self.project) from error

    def container(self, method: str, **request):
        """Make one request to the container API and return its answer.

        Args:
            method: Of `google.cloud.container_v1.ClusterManagerClient`: ``get_cluster``.
            request: Its fields.

        Raises:
            GcpError: It was refused, or not answered.
        """
        call = getattr(self._clusters, method)
        about = f"container: {method}{_names(request)}"
        return self._attempt(lambda: call(request=request, retry=None, timeout=_TIMEOUT), about)

    def rest(self, service: str, method: str, **parameters) -> dict:
        """Make one request to another API and return its answer.

        Args:
            service: ``compute``, ``iam`` …
            method: As in its discovery document, from the first collection on: ``networks.insert``.
            parameters: The request's own.

        Raises:
            GcpError: It was refused, or not answered.
        """
        request = self._request(service, method, parameters)
        return self._attempt(
            lambda: request.execute(http=self._http(service)), _about(service, method, parameters)
        )

    def every(self, service: str, method: str, key: str, **parameters) -> Iterator:
        """Yield what all pages of an answer hold.

        Args:
            key: The member of the answer that is a list, or a mapping of zones and regions to lists.
        """
        collection, _, verb = method.rpartition(".")
        request, about = self._request(service, method, parameters), _about(service, method, parameters)
        while request is not None:
            page = self._attempt(lambda request=request: request.execute(http=self._http(service)), about)
            found = page.get(key) or []
            yield from found.values() if isinstance(found, Mapping) else found
            request = getattr(self._collection(service, collection), f"{verb}_next")(request, page)

    # How they are reached

    @cached_property
    def _clusters(self):
        from google.cloud import container_v1  # a quarter of a second

        override = endpoint("container")
        if urlsplit(override).scheme == "http":
            import grpc
            from google.cloud.container_v1.services.cluster_manager.transports import (
                ClusterManagerGrpcTransport,
            )

            channel = grpc.insecure_channel(urlsplit(override).netloc)
            return container_v1.ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=channel))
        options = {"api_endpoint": urlsplit(override).netloc} if override else None
        return container_v1.ClusterManagerClient(credentials=self.credentials, client_options=options)

    def _collection(self, service: str, path: str):
        with self._lock:
            if service not in self._services:
                options = {"api_endpoint": _base(service)} if endpoint(service) else None
                self._services[service] = build(
                    service,
                    VERSIONS.get(service, "v1"),
                    http=httplib2.Http(),  # each thread brings its own to each request
                    static_discovery=True,
                    cache_discovery=False,  # of what is not static; it only warns that it cannot
                    client_options=options,
                )
            found = self._services[service]
        for word in filter(None, path.split(".")):
            found = getattr(found, word)()
        return found

    def _request(self, service: str, method: str, parameters: Mapping):
        collection, _, verb = method.rpartition(".")
        try:
            request = getattr(self._collection(service, collection), verb)(**parameters)
        except TypeError as error:  # a value that the discovery document does not allow
            raise translate(error, _about(service, method, parameters), self.project) from error
        if (elsewhere := endpoint(service)) and "media_body" in parameters:  # the library forgets it there
            request.uri = urljoin(elsewhere, urlsplit(request.uri)._replace(scheme="", netloc="").geturl())
        return request

    def _http(self, service: str):
        """Return this thread's connection: httplib2 is not made for several threads."""
        open_one = urlsplit(endpoint(service)).scheme == "http"
        kept = self._threads.__dict__
        if open_one not in kept.setdefault("http", {}):
            plain = httplib2.Http(timeout=_TIMEOUT)
            if not open_one:
                from google_auth_httplib2 import AuthorizedHttp

                kept["http"][open_one] = AuthorizedHttp(self.credentials, http=plain)
            else:
                kept["http"][open_one] = plain
        return kept["http"][open_one]

    def _attempt(self, call: Callable[[], object], about: str):
        """Make a request, again if the network or the service failed: all of the kit's are idempotent.

        Not the libraries' own retrying: they know a time and no number of attempts, gRPC's and HTTP's differ,
        and neither knows what the kit takes for a passing error.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return call()
            except _RAISED as error:
                told = translate(error, about, self.project)
                again = isinstance(told, GcpError) and told.why in (ErrorReason.NETWORK, ErrorReason.FAULT)
                if not again or attempt == _ATTEMPTS - 1:
                    raise told from error
                time.sleep(0.2 * 2**attempt)
        raise AssertionError

    def _usual_project(self) -> str:
        try:
            project = google.auth.default(scopes=SCOPES)[1]
        except auth.GoogleAuthError:
            project = None
        if not project:
            raise BadInput(
                "no project is named", about="Google Cloud", fix=f'project="my-project", or {LOGIN}'
            )
        return project


def find(call: Callable[..., object], *arguments, **parameters):
    """Make one request about something that may not be there; None if it is not.

    Example:
        >>> find(session.rest, "compute", "networks.get", project="p", network="lab")
    """
    try:
        return call(*arguments, **parameters)
    except GcpError as error:
        if error.why is ErrorReason.ABSENT:
            return None
        raise


def endpoint(service: str) -> str:
    """Find an endpoint that overrides Google's; empty if there is none."""
    return os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")


def region_of(zone: str | None) -> str:
    """Return a zone's region.

    Example:
        >>> region_of("us-central1-c")
        'us-central1'
    """
    return (zone or "").rpartition("-")[0]


def _base(service: str) -> str:
    given = endpoint(service)
    return given if urlsplit(given).path.strip("/") else urljoin(given, "/" + _PATHS.get(service, ""))


def _about(service: str, method: str, parameters: Mapping) -> str:
    return f"{service}: {method}{_names(parameters)}"


def _names(parameters: Mapping) -> str:
    told = [value for value in parameters.values() if isinstance(value, str)]
    return " " + " ".join(told) if told else ""
