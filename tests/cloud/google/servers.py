"""The fake's door: HTTP on one port, on which a service is under its name: ``/file/v1/projects/…``."""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from . import storage
from .api_errors import ApiError, LineCut
from .rest import Rest


class HttpServer:
    """An HTTP server on a port of this machine; below ``/_tokens`` it reviews an API server's tokens."""

    def __init__(self, rest: Rest, tokens: Callable[[bytes], bytes], host: str = "127.0.0.1") -> None:
        handler = type("Handler", (_Handler,), {"rest": rest, "tokens": staticmethod(tokens)})
        self._server = ThreadingHTTPServer((host, 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://{host}:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rest: Rest
    tokens: Callable[[bytes], bytes]

    def log_message(self, *_) -> None:
        pass

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        service, _, path = url.path.lstrip("/").partition("/")
        if service == "download":  # as google-cloud-storage has it
            service, _, path = path.partition("/")
        status = 200
        try:
            body = self._serve(service, path, parse_qs(url.query, keep_blank_values=True), raw)
        except ApiError as error:
            status, body = error.http(service)
        except LineCut:
            self.close_connection = True
            return
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _serve(self, service: str, path: str, query: Mapping, raw: bytes) -> dict | bytes:
        if service == "_tokens":
            return self.tokens(raw)
        if service == "upload":
            kind = self.headers.get("Content-Type", "")
            return storage.upload(self.rest, path.partition("v1/")[2], query, kind, raw)
        return self.rest.handle(service, self.command, path, query, json.loads(raw or b"null"))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer
