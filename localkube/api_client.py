"""A client of the Kubernetes API for the kubelet: requests, and an informer for each resource.

It is written on aiohttp because every cluster has a kubelet, and the generated clients take more memory than
the rest of it. Notebooks and the command line use the official client.
"""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from localkube.api_path import MutableObject
from localkube.errors import ApiError

log = logging.getLogger(__name__)

PATCHES = {
    "strategic": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
# For responses that are not read: the object's metadata alone.
BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
CONNECTIONS, REQUEST_SECONDS, REPLACEMENT_SECONDS = 12, 30, 60.0
# Half of the maximum of a watch's line, and of its unparsed data: an object of 1.5 MB, etcd's limit, is at
# most six times as long in JSON.
WATCH_LINE = 6 * 1024 * 1024
# Per connection, for its lifetime; asyncio's default is 256 KiB, and a node can have a thousand streams.
TLS_BUFFER_BYTES = 64 * 1024
RETRY_SECONDS, STEADY_SECONDS, WARN_AFTER = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0), 5.0, 3
RELATED_SECONDS = (0.01, 0.03, 0.1, 0.3)


class Api:
    """Requests to one API server as one user; an async context manager."""

    def __init__(
        self, server: str, *, ca_file: Path, cert_file: Path, key_file: Path, connections: int = CONNECTIONS
    ) -> None:
        self.server = server.rstrip("/")
        self._connections = connections
        self._certificate = cert_file, key_file
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._tls.load_cert_chain(*self._certificate)
        self._session: aiohttp.ClientSession  # from __aenter__ on
        self._streams: aiohttp.ClientSession
        self._watches: set[aiohttp.ClientResponse] = set()

    async def __aenter__(self) -> "Api":
        self._open_sessions()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        await self._streams.close()

    async def follow_renewals(self) -> None:
        """Load each renewed certificate: the API server refuses one that has expired."""
        async for _ in replacements(self._certificate[0]):
            try:
                self._tls.load_cert_chain(*self._certificate)
            except OSError as error:
                log.warning("the renewed certificate cannot be used: %s", error)
                continue
            former, watches = (self._session, self._streams), set(self._watches)
            self._open_sessions()
            await asyncio.sleep(REQUEST_SECONDS)  # until earlier requests are answered
            for answer in watches & self._watches:  # closing the session would not wake them
                answer.content.set_exception(aiohttp.ClientConnectionError("the certificate was renewed"))
            for session in former:
                await session.close()
            log.info("the certificate was renewed")

    def _open_sessions(self) -> None:
        # Few connections: under load a new one, with its handshake, costs more than waiting for an old one.
        self._session = self._open(connections=self._connections, total=REQUEST_SECONDS, buffer=2**18)
        self._streams = self._open(connections=0, total=None, buffer=WATCH_LINE)

    def _open(self, *, connections: int, total: float | None, buffer: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=connections, keepalive_timeout=300),
            timeout=aiohttp.ClientTimeout(total=total, sock_connect=10),
            read_bufsize=buffer,
        )

    async def get(self, path: str, **params: str) -> MutableObject:
        return await self._call("GET", path, params=params)

    async def post(self, path: str, body: MutableObject) -> MutableObject:
        return await self._call("POST", path, body=body)

    async def delete(self, path: str, body: MutableObject | None = None, **params: str) -> MutableObject:
        """Delete an object or a list; ``body`` holds DeleteOptions."""
        return await self._call("DELETE", path, body=body, params=params)

    async def patch(self, path: str, body: object, *, kind: str = "strategic") -> MutableObject:
        """Patch an object; ``kind`` is strategic, merge or apply."""
        return await self._call("PATCH", path, body=body, content_type=PATCHES[kind])

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> MutableObject:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if data else {}
        try:
            async with self._session.request(
                method, self.server + path, params=params, data=data, headers=headers
            ) as answer:
                raw = await answer.read()
                if answer.status >= 400:
                    raise _error(answer.status, raw)
                return json.loads(raw)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error or type(error).__name__}") from error

    async def send(self, method: str, path: str, data: bytes, content_type: str) -> int:
        """Send a request and return the status alone; 0 when there was no response."""
        headers = {"Content-Type": content_type, "Accept": BRIEF}
        url = self.server + path
        try:
            async with self._session.request(method, url, data=data, headers=headers) as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0

    async def lines(self, path: str, params: dict[str, str]) -> AsyncGenerator[bytes]:
        """Yield the lines of a watch, one JSON object each, unparsed.

        Raises:
            ApiError: It ended for another reason than its timeout.
        """
        answer = None
        try:
            async with self._streams.get(self.server + path, params=params) as answer:
                if answer.status >= 400:
                    raise _error(answer.status, await answer.read())
                self._watches.add(answer)
                async for line in answer.content:
                    if line.startswith(b'{"type":"ERROR"'):
                        status = json.loads(line)["object"]
                        raise _error(status.get("code", 500), json.dumps(status).encode())
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"watch {path}: {error or type(error).__name__}") from error
        finally:
            self._watches.discard(answer)


async def replacements(path: Path) -> AsyncIterator[None]:
    """Yield whenever a file has been replaced, at most REPLACEMENT_SECONDS later."""
    modified = path.stat().st_mtime_ns
    while True:
        await asyncio.sleep(REPLACEMENT_SECONDS)
        with contextlib.suppress(FileNotFoundError):
            now = path.stat().st_mtime_ns
            if now != modified:
                modified = now
                yield


class NodeApi(Api):
    """A node's own client: while ``silent``, every request fails, as without a network.

    The API server may learn of a pod later than the node, and until then refuses access to the pod's objects.

    Args:
        turn: Waits until a request may start: one namespace must not use all connections.
        options: The arguments of ``Api``.
    """

    silent = False

    def __init__(
        self, server: str, *, turn: Callable[[], contextlib.AbstractAsyncContextManager[None]], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._turn = turn

    async def _call(self, method: str, path: str, **request: Any) -> MutableObject:
        for delay in (*RELATED_SECONDS, None):
            if self.silent:
                raise ApiError(0, "Unreachable", f"{method} {path}: the node has no network")
            try:
                async with self._turn():
                    return await super()._call(method, path, **request)
            except ApiError as error:
                is_early = error.status == 403 or (error.status == 404 and path.endswith("/token"))
                if not is_early or delay is None:
                    raise
            await asyncio.sleep(delay)
        raise AssertionError


def _error(status: int, raw: bytes) -> ApiError:
    try:
        answer = json.loads(raw)
    except ValueError:
        return ApiError(status, "Unknown", raw[:500].decode(errors="replace"))
    if not isinstance(answer, dict):
        return ApiError(status, "Unknown", str(answer)[:500])
    return ApiError(status, answer.get("reason", ""), answer.get("message", ""))


Callback = Callable[[str, MutableObject, MutableObject | None], None]


class Informer:
    """A local copy of one resource, kept up to date by list and watch.

    ``store`` maps (namespace, name) to the latest object. Callbacks get the kind of change (``ADDED``,
    ``MODIFIED``, ``DELETED``), the object, and the object before it. Objects deleted while the connection was
    lost are reported as ``DELETED`` after the next list.

    Args:
        field_selector: Selects objects by their fields, on the API server.
        label_selector: Selects objects by their labels.
        trim: Removes unused fields from each object before it is stored.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
        trim: Callable[[MutableObject], None] = lambda item: None,
    ) -> None:
        self.store: dict[tuple[str, str], MutableObject] = {}
        self.synced = asyncio.Event()
        self._api = api
        self._path = path
        self._params = {
            key: value
            for key, value in (("fieldSelector", field_selector), ("labelSelector", label_selector))
            if value
        }
        self._trim = trim
        self._callbacks: list[Callback] = []
        self._version = ""

    def subscribe(self, callback: Callback) -> None:
        """Call ``callback(change, object, before)`` for each change from now on."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """List and watch; reconnect after errors, and list again after 410 Gone.

        The delay grows with each consecutive attempt that ends within STEADY_SECONDS.
        """
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            started, problem = clock(), "it ended at once"
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                problem = str(error)
                if error.status == 410:
                    self._version = ""
            if clock() - started >= STEADY_SECONDS:
                failures = 0
            level = logging.WARNING if failures >= WARN_AFTER else logging.DEBUG
            log.log(level, "watch %s: %s", self._path, problem)
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    async def _list(self) -> None:
        answer = await self._api.get(self._path, **self._params)
        kind, version = answer["kind"].removesuffix("List"), answer["apiVersion"]
        fresh = {}
        for item in answer.get("items") or []:
            item["kind"], item["apiVersion"] = kind, version
            fresh[object_key(item)] = item
        for key in [key for key in self.store if key not in fresh]:
            self._apply("DELETED", self.store[key])
        for item in fresh.values():
            self._apply("ADDED", item)
        self._version = answer["metadata"]["resourceVersion"]
        self.synced.set()

    async def _watch(self) -> None:
        params = self._params | {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "3000",
        }
        try:
            async with contextlib.aclosing(self._api.lines(self._path, params)) as lines:
                async for line in lines:
                    self._event(json.loads(line))
        except ValueError as error:  # the connection was lost within a line
            raise ApiError(0, "Unreachable", f"watch {self._path}: {error}") from error

    def _event(self, event: MutableObject) -> None:
        change, item = event["type"], event["object"]
        self._version = item["metadata"]["resourceVersion"]
        if change != "BOOKMARK":
            self._apply(change, item)

    def _apply(self, change: str, item: MutableObject) -> None:
        item["metadata"].pop("managedFields", None)  # larger than the rest of a Service with many ports
        self._trim(item)
        key = object_key(item)
        before = self.store.get(key)
        if change == "DELETED":
            self.store.pop(key, None)
        else:
            if before and before["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]:
                return
            change = "MODIFIED" if before else "ADDED"
            self.store[key] = item
        for callback in self._callbacks:
            try:
                callback(change, item, before)
            except Exception:  # one malformed object must not end the watch of all others
                log.exception("%s %s of %s was not processed", change, "/".join(key), self._path)


def object_key(item: Mapping[str, Any]) -> tuple[str, str]:
    """Get the namespace, empty for a cluster-scoped object, and the name of an object."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


async def find(api: Api, path: str) -> MutableObject | None:
    """Get an object; None if it does not exist."""
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
