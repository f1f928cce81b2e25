"""The HTTP door: one port for all services, each under its name: ``/file/v1/projects/…``."""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from . import storage
from .api_errors import ApiError, LineCut
from .rest import Rest


class HttpServer:
    """A server on a port of this machine.

    Args:
        rest: The services.
        doors: Others, by the first word of their path: called with the rest of it and the body.
        host: At which of its addresses.
    """

    def __init__(
        self, rest: Rest, doors: Mapping[str, Callable[[str, dict], object]], host: str = "127.0.0.1"
    ) -> None:
        handler = type("Handler", (_Handler,), {"rest": rest, "doors": doors})
        self._server = ThreadingHTTPServer((host, 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="fake-google", daemon=True
        )
        self._thread.start()
        self.url = f"http://{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rest: Rest
    doors: Mapping[str, Callable[[str, dict], object]]

    def log_message(self, *_) -> None:
        pass

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        # "download/" as google-cloud-storage has it
        first, _, path = url.path.lstrip("/").removeprefix("download/").partition("/")
        try:
            try:
                if first in self.doors:
                    status, body = 200, self.doors[first](path, json.loads(raw or b"{}"))
                elif first == "upload":
                    query, kind = parse_qs(url.query), self.headers.get("Content-Type", "")
                    status, body = 200, storage.upload(self.rest, path.partition("v1/")[2], query, kind, raw)
                else:
                    query = parse_qs(url.query, keep_blank_values=True)
                    status, body = 200, self._serve(first.removeprefix("download"), path, query, raw)
            except ApiError as error:
                status, body = error.json()
        except LineCut:
            self.close_connection = True
            return
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _serve(self, service: str, path: str, query: dict, raw: bytes) -> dict:
        try:
            body = json.loads(raw) if raw else None
        except ValueError as error:
            raise ApiError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error
        return self.rest.handle(service, self.command, path, query, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer
