"""The Kubernetes API, in dicts: get, list, create, apply, delete, and streams.

The only importer of `kubernetes`, which reads kubeconfigs and gets each cloud's credentials. The requests
are made here, because its generated models drop unknown fields, and its errors name neither the object nor a
fix.
"""

import base64
import copy
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3

from kitlib.errors import ClusterUnreachable, CommandFailed, KitError, Rejected
from kitlib.k8s import kubeconfig as kubeconfig_files
from kitlib.k8s.api_errors import error_message, expired, rejected, unserved
from kitlib.k8s.api_path import api_path
from kitlib.k8s.job_kinds import JOBS
from kitlib.k8s.manifests import Object, title

_WRITE_PARAMS = {"fieldManager": "trainyard", "fieldValidation": "Strict"}
CONNECT_SECONDS, READ_SECONDS = 5, 60
NOT_ACCEPTED = "printed a credential that the cluster does not accept: expired, or without access"
# As client-go: what the API server answers with Retry-After is sent again, as while a kind's store starts.
RETRIES = urllib3.Retry(
    10, connect=False, read=False, redirect=False, allowed_methods=None, raise_on_status=False
)
LONGEST_LINE = 2**24  # bytes; no object of the API is as large
# Of the kinds that the kit requests by name; other kinds come with their apiVersion.
API_VERSIONS = {
    **{kind.name: kind.api_version for kind in JOBS},
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "APIService": "apiregistration.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "ResourceSlice": "resource.k8s.io/v1",
    "NodeMetrics": "metrics.k8s.io/v1beta1",
    "PodMetrics": "metrics.k8s.io/v1beta1",
}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Resource:
    api_version: str
    plural: str
    namespaced: bool


class Stream:
    """The lines of a streamed response; iterate in one thread, close from any.

    Of a line that does not end, the beginning is kept.

    Attributes:
        cut: Whether the connection broke. Where a node dies, the API server ends the response as if complete.
        rest: The text after the last newline, once it has ended.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._closed = threading.Event()
        self.cut: bool = False
        self.rest: str = ""

    def __iter__(self) -> Iterator[str]:
        pieces: list[bytes] = []  # of a line that has not ended
        size = 0
        try:
            for chunk in self._response.stream(2**16):
                if self._closed.is_set():  # what a closed TLS connection still brings is not deciphered
                    return
                *lines, last = chunk.split(b"\n")
                if lines:
                    lines[0] = b"".join([*pieces, lines[0]])
                    pieces, size = [], 0
                for line in lines:
                    yield line.decode("utf-8", "replace")
                if size < LONGEST_LINE:
                    pieces.append(last)
                    size += len(last)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            self.cut = True
            if not self._closed.is_set():  # cut by the other side: whoever follows connects again
                return
        finally:
            self._response.close()
        if not self._closed.is_set():
            self.rest = b"".join(pieces).decode("utf-8", "replace")

    def close(self) -> None:
        """End the iteration."""
        if not self._closed.is_set():
            self._closed.set()
            try:
                self._response.shutdown()
            except (ValueError, RuntimeError, OSError):  # it had ended already
                return


class Kube:
    """One cluster's API, as one user.

    Args:
        kubeconfig: Read, and never written.
        source: What errors name as the kubeconfig; by default ``kubeconfig``.
        cluster: The cluster's name, for errors.
        explain: Makes the error of a failed connection from the client's message.
    """

    def __init__(
        self,
        kubeconfig: Path,
        *,
        cluster: str,
        source: str = "",
        explain: Callable[[str], KitError] | None = None,
    ) -> None:
        self.cluster = cluster
        self.kubeconfig: Path = Path(kubeconfig)
        self._source = source or str(kubeconfig)
        self._explain = explain or self._unreachable
        self._client, namespace, self._plugin = kubeconfig_files.load(self.kubeconfig, cluster)
        self.namespace: str = namespace or "default"  # of objects that name none
        self._resources: dict[tuple[str, str], _Resource] = {}

    def get(self, kind: str, name: str) -> Object:
        """Get one object; raise Rejected if there is none, or this user may not see it."""
        return self._json("GET", self.path(kind, name), about=f'{kind} "{name}"')

    def find(self, kind: str, name: str) -> Object | None:
        """Get one object, or None if there is none."""
        try:
            return self.get(kind, name)
        except Rejected as error:
            if error.status == 404:
                return None
            raise

    def get_all(
        self, kind: str, *, labels: str = "", fields: str = "", api_version: str = ""
    ) -> list[Object]:
        """List the objects of the namespace that match the selectors."""
        return self.get_all_at(kind, labels=labels, fields=fields, api_version=api_version)[0]

    def get_all_at(
        self, kind: str, *, labels: str = "", fields: str = "", api_version: str = ""
    ) -> tuple[list[Object], str]:
        """List objects, with the resourceVersion from which a watch continues."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        path = self.path(kind, api_version=api_version)
        answer = self._json("GET", path, about=f"{kind}s", params=selectors)
        # Metrics have no version, and cannot be watched.
        return answer.get("items") or [], answer["metadata"].get("resourceVersion", "")

    def create(self, item: Object, *, dry_run: bool = False) -> Object:
        """Create an object; unknown fields are an error."""
        return self._create(item, _WRITE_PARAMS | {"dryRun": "All" if dry_run else ""}, attempts=3)

    def _create(self, item: Object, params: Mapping[str, object], *, attempts: int) -> Object:
        path = self._path_of(item, named=False)
        try:
            return self._json("POST", path, body=item, about=title(item), params=params)
        except Rejected as error:
            if error.reason == "Conflict" and attempts > 1:  # another request changed the same ResourceQuota
                return self._create(item, params, attempts=attempts - 1)
            raise self._kind_missing(error, item["apiVersion"], item["kind"]) from error

    def apply(self, item: Object) -> Object:
        """Create or update an object (server-side apply); unknown fields are an error."""
        path, params = self._path_of(item), _WRITE_PARAMS | {"force": "true"}
        kind = "application/apply-patch+yaml"
        try:
            return self._json("PATCH", path, body=item, about=title(item), content_type=kind, params=params)
        except Rejected as error:
            raise self._kind_missing(error, item["apiVersion"], item["kind"]) from error

    def patch(self, kind: str, name: str, change: Object, *, part: str = "") -> Object:
        """Merge a change into an object, or into a subresource: ``scale``, ``status``."""
        return self._json(
            "PATCH",
            self.path(kind, name) + (f"/{part}" if part else ""),
            body=change,
            about=f'{kind} "{name}"',
            content_type="application/merge-patch+json",
            params=_WRITE_PARAMS,
        )

    def delete(self, kind: str, name: str, *, uid: str = "", grace: int | None = None) -> None:
        """Delete an object with its dependents; one that does not exist, or has another uid, is fine.

        Args:
            grace: Seconds that a pod has to end, in place of its own.
        """
        body: Object = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        body |= {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self._json("DELETE", self.path(kind, name), body=body, about=f'{kind} "{name}"')
        except Rejected as error:
            if error.status != 404 and not (uid and error.status == 409):
                raise

    def raw(self, path: str) -> Object:
        """Get the response for a path of `api_path`, as ``kubectl get --raw``."""
        return self._json("GET", path, about=path)

    def version(self) -> str:
        """Get the API server's version: ``v1.37.2``."""
        return self._json("GET", "/version", about="the version")["gitVersion"]

    def in_namespace(self, namespace: str) -> "Kube":
        """Use the same API with another namespace for objects that name none; "" lists those of all."""
        scoped = copy.copy(self)
        scoped.namespace = namespace
        return scoped

    def token(self, account: str, *, namespace: str, seconds: int) -> tuple[str, str]:
        """Create a token of a ServiceAccount; return it and its expiry."""
        path = f"{self.in_namespace(namespace).path('ServiceAccount', account)}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self._json("POST", path, body=body, about=f'the token of ServiceAccount "{account}"')
        return answer["status"]["token"], answer["status"]["expirationTimestamp"]

    def kubeconfig_for(self, token: str, *, user: str, namespace: str) -> Object:
        """Make a kubeconfig for another user of this API, with a token."""
        settings = self._client.configuration
        server: dict[str, object] = {"server": settings.host}
        if settings.ssl_ca_cert:
            data = base64.b64encode(Path(settings.ssl_ca_cert).read_bytes())
            server["certificate-authority-data"] = data.decode()
        if not settings.verify_ssl:
            server["insecure-skip-tls-verify"] = True
        return kubeconfig_files.make_kubeconfig(
            self.cluster, server, user, {"token": token}, namespace=namespace
        )

    def watch(self, kind: str, version: str, *, labels: str = "", fields: str = "") -> Stream:
        """Stream the changes since ``version``, a JSON line each; the server ends it after a while."""
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": READ_SECONDS - 10}
        params |= {"labelSelector": labels, "fieldSelector": fields}
        return self.stream(self.path(kind), about=f"{kind}s", params=params)

    def stream(
        self, path: str, *, about: str, params: Mapping[str, object], seconds: float = READ_SECONDS
    ) -> Stream:
        """Stream a response line by line, waiting at most so many seconds for each part."""
        return Stream(self._request("GET", path, params=params, about=about, seconds=seconds))

    def execute(self, pod: str, command: Sequence[str], *, container: str) -> str:
        """Run a command in a container and return its output; CommandFailed if its exit status is not 0."""
        from kubernetes import client
        from kubernetes.stream import stream
        from websocket import WebSocketException

        about = f'a command in pod "{pod}"'
        try:
            channel = stream(
                client.CoreV1Api(self._client).connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                container=container,
                command=list(command),
                stdout=True,
                stderr=True,
                _preload_content=False,
            )
            channel.run_forever(timeout=READ_SECONDS)
        # The client raises an AttributeError while it handles a failed handshake.
        except (client.ApiException, AttributeError) as error:
            message = str(
                getattr(error.__context__ if isinstance(error, AttributeError) else error, "reason", "")
            )
            refused = re.search(r"Handshake status (\d{3}) .{0,300}? -\+-\+- (.*)", message, re.DOTALL)
            if refused is None:
                raise self._explain(message or str(error)) from error
            raise rejected(int(refused[1]), refused[2].encode(), about=self._place(about)) from error
        except (WebSocketException, OSError) as error:
            raise self._explain(error_message(error)) from error
        ended = not channel.is_open()
        try:
            status = channel.returncode if ended else None  # read first: reading the output discards it
        except TypeError as error:  # no status was received
            raise self._explain("the connection ended before the command") from error
        written = channel.read_all()
        if status != 0:
            what = written.strip() if ended else f"the command did not end within {READ_SECONDS} s"
            fix = f"try it manually: kubectl exec {pod} -- {' '.join(command)}"
            raise CommandFailed(what, about=self._place(about), fix=fix)
        return written

    def path(self, kind: str, name: str | None = None, *, api_version: str = "") -> str:
        """Build the URL path of an object, or of a collection."""
        resource = self._resource(api_version or API_VERSIONS.get(kind, "v1"), kind)
        return _join(resource, self.namespace, name)

    def _path_of(self, item: Object, *, named: bool = True) -> str:
        meta = item["metadata"]
        resource = self._resource(item["apiVersion"], item["kind"])
        return _join(resource, meta.get("namespace") or self.namespace, meta["name"] if named else None)

    def _resource(self, api_version: str, kind: str) -> _Resource:
        if (api_version, kind) not in self._resources:
            try:
                about = f"{api_version}, the API of {kind}"
                resources = self._json("GET", api_path(api_version), about=about)["resources"]
            except Rejected as error:
                if error.status != 404:
                    raise
                resources = []
            for resource in resources:
                if "/" not in resource["name"]:
                    self._resources[api_version, resource["kind"]] = _Resource(
                        api_version, resource["name"], resource["namespaced"]
                    )
        try:
            return self._resources[api_version, kind]
        except KeyError as error:
            raise self._no_kind(api_version, kind) from error

    def _no_kind(self, api_version: str, kind: str) -> Rejected:
        return Rejected(
            f"the cluster has no kind {kind} in {api_version}",
            about=self._place(kind),
            fix="correct kind or apiVersion, or install what defines it",
            status=404,
            reason="NotFound",
        )

    def _kind_missing(self, error: Rejected, api_version: str, kind: str) -> Rejected:
        """Read a refused write: where the kind is not served, though discovery has listed it, say that."""
        if not unserved(error):
            return error
        self._resources.pop((api_version, kind), None)
        return self._no_kind(api_version, kind)

    def _json(self, method: str, path: str, **request: Any) -> Object:
        response = self._request(method, path, **request)
        try:
            return json.loads(response.data)
        except urllib3.exceptions.HTTPError as error:
            raise self._explain(error_message(error)) from error
        finally:
            response.release_conn()

    def _request(
        self,
        method: str,
        path: str,
        *,
        about: str,
        params: Mapping[str, object] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        seconds: float = READ_SECONDS,
    ) -> urllib3.BaseHTTPResponse:
        query = urlencode({key: value for key, value in (params or {}).items() if value not in ("", None)})
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "trainyard"}
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                f"{self._client.configuration.host}{path}{'?' if query else ''}{query}",
                body=None if body is None else json.dumps(body),
                headers=headers,
                preload_content=False,
                retries=RETRIES,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=seconds),
            )
            source = f'{self._source}, for cluster "{self.cluster}"'
            if response.status == 401 and (since := expired(headers.get("authorization"), datetime.now(UTC))):
                what = f"the token in the kubeconfig has expired, at {since}"
                fix = "ask the instructor for a new kubeconfig (trainyard workshop add)"
                raise Rejected(what, about=source, fix=fix, status=401, reason="Unauthorized")
            anonymous = response.status == 403 and b"system:anonymous" in response.data
            if (anonymous or response.status == 401) and self._plugin:
                message = self._plugin.failure or f"{self._plugin.entry['command']} {NOT_ACCEPTED}"
                what = f"no user is signed in: {message}"
                fix = "do what it says, or sign in again; `kit.credentials()` says which are used"
                raise Rejected(what, about=source, fix=fix, status=401, reason="Unauthorized")
            if response.status >= 400:
                raise rejected(response.status, response.data, about=self._place(about))
        except (urllib3.exceptions.HTTPError, ssl.SSLError, OSError) as error:
            raise self._explain(error_message(error)) from error
        return response

    def _unreachable(self, message: str) -> KitError:
        return ClusterUnreachable(
            f"its API server does not answer: {message}",
            about=f'cluster "{self.cluster}"',
            fix=f"check that {self._client.configuration.host} can be reached from here",
        )

    def _place(self, about: str) -> str:
        return f'{about} in cluster "{self.cluster}"'


def allowed(read: Callable[[], Answer]) -> Answer | None:
    """Read from the API; None where this user may not."""
    try:
        return read()
    except Rejected as error:
        if error.status != 403:
            raise
        return None


def _join(resource: _Resource, namespace: str | None, name: str | None) -> str:
    inside = namespace if resource.namespaced else None
    return api_path(resource.api_version, resource.plural, namespace=inside, name=name)
