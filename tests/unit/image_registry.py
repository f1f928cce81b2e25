"""A small registry of images made in memory, that misbehaves as it is told."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from .oci_images import Image, digest

# What a fault may do with a request: answer it, and say so by True.
Fault = Callable[["Handler", str], bool]


class Registry:
    """The state of a registry.

    Attributes:
        address: Its host and port.
        requests: The method and path of each request, in order.
        ranges: The Range header of each request of a blob.
        credentials: ``user:password`` that it wants: by Basic, or with ``tokens`` by a token server.
        realm: Where tokens are to be had, if not from itself.
        fault: Called with each request of manifests and blobs.
    """

    def __init__(self) -> None:
        self.address = ""
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[str | None] = []
        self.queries: list[str] = []
        self.authorizations: list[str] = []
        self.credentials = ""
        self.tokens = False
        self.realm = ""
        self.fault: Fault | None = None
        self.head = True

    def add(self, name: str, image: Image) -> str:
        """Add an image as ``repository:tag`` and return its reference."""
        repository, tag = name.split(":")
        self.manifests[f"{repository}/{tag}"] = (image.media, image.manifest)
        self.manifests[f"{repository}/{image.digest}"] = (image.media, image.manifest)
        for key, (media, manifest) in image.manifests.items():
            self.manifests[f"{repository}/{key}"] = (media, manifest)
        self.blobs |= image.blobs
        return f"{self.address}/{name}"

    def downloads(self) -> int:
        return sum("/blobs/" in path for _, path in self.requests)


class Handler(BaseHTTPRequestHandler):
    """Serve what the registry has, of the distribution specification's reading half."""

    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.registry.requests.append((self.command, url.path))
        self.registry.queries.append(url.query)
        if url.path == "/token":
            self._token(parse_qs(url.query))
        elif not self._allowed():
            self._challenge()
        elif url.path == "/v2/":
            self.answer(200, b"{}")
        elif self.registry.fault and self.registry.fault(self, url.path):
            pass
        elif match := re.fullmatch(r"/v2/(.+)/manifests/(.+)", url.path):
            self._manifest(f"{match[1]}/{match[2]}")
        elif match := re.fullmatch(r"/v2/.+/blobs/(.+)", url.path):
            self.blob(self.registry.blobs.get(match[1]))
        else:
            self.refuse(404, "NAME_UNKNOWN")

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, **headers: str) -> None:
        body = json.dumps({"errors": [{"code": code, "message": "the test says so"}]}).encode()
        self.answer(status, body, **headers)

    def blob(self, content: bytes | None, *, ranges: bool = True, cut: int | None = None) -> None:
        """Send a blob, or what is left of it; ``cut`` closes the connection after so many bytes."""
        byte_range = self.headers.get("Range")
        self.registry.ranges.append(byte_range)
        if content is None:
            return self.refuse(404, "BLOB_UNKNOWN")
        start = int(byte_range.removeprefix("bytes=").rstrip("-")) if byte_range and ranges else 0
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None and cut < len(body):
            self.wfile.flush()
            self.close_connection = True
        return None

    def drip(self, content: bytes, *, pieces: int, seconds: float) -> None:
        """Send a blob slowly."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        size = -(-len(content) // pieces)
        for start in range(0, len(content), size):
            self.wfile.write(content[start : start + size])
            self.wfile.flush()
            time.sleep(seconds / pieces)

    def _manifest(self, name: str) -> None:
        manifest = self.registry.manifests.get(name)
        if manifest is None:
            return self.refuse(404, "MANIFEST_UNKNOWN")
        if self.command == "HEAD" and not self.registry.head:
            return self.answer(200, b"")
        media, content = manifest
        headers = {"Content_Type": media}
        if self.registry.head:
            headers["Docker_Content_Digest"] = digest(content)
        return self.answer(200, content, **headers)

    def _allowed(self) -> bool:
        credentials = self.registry.credentials
        authorization = self.headers.get("Authorization", "")
        self.registry.authorizations.append(authorization)
        if not credentials:
            return True
        right = (
            "Bearer right"
            if self.registry.tokens
            else f"Basic {base64.b64encode(credentials.encode()).decode()}"
        )
        return authorization == right

    def _challenge(self) -> None:
        realm = self.registry.realm or f"http://{self.registry.address}/token"
        how = f'Bearer realm="{realm}",service="test"' if self.registry.tokens else 'Basic realm="test"'
        self.refuse(401, "UNAUTHORIZED", WWW_Authenticate=how)

    def _token(self, query: dict[str, list[str]]) -> None:
        authorization = self.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(authorization).decode() == self.registry.credentials:
            self.answer(200, json.dumps({"token": "right", "scope": query.get("scope")}).encode())
        else:
            self.refuse(401, "UNAUTHORIZED")

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Registry]:
    """Run a registry on a port of 127.0.0.1."""
    registry = Registry()
    handler = type("OwnHandler", (Handler,), {"registry": registry})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        registry.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, name="registry")
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
