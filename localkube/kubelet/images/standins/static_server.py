"""Serve /usr/share/nginx/html as an unconfigured nginx would, and log as it does.

Stands in for the image nginx: files, index.html, 404, an access log, exit on SIGTERM and SIGQUIT.
Standard library only. It reads no configuration, and its ``Server`` header names this server.
"""

import http.server
import io
import os
import signal
import socket
import socketserver
import sys
import time
from typing import BinaryIO

ROOT = os.environ.get("NGINX_ROOT", "/usr/share/nginx/html")
WELCOME = b"""<!DOCTYPE html>
<html><head><title>Welcome to nginx!</title></head>
<body><h1>Welcome to nginx!</h1>
<p>This is a small web server that stands in for it: there is nothing in /usr/share/nginx/html.</p>
</body></html>
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers GET and HEAD; one line of nginx's "combined" log for each request."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "trainyard-static", ""

    def __init__(
        self, request: socket.socket, client: tuple[str, int], server: socketserver.BaseServer
    ) -> None:
        super().__init__(request, client, server, directory=ROOT)

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        if self.path == "/" and not os.path.exists(os.path.join(ROOT, "index.html")):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(WELCOME)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(WELCOME)
            return None
        return super().send_head()

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        # nginx lists no directories unless configured to.
        self.send_error(403, "Forbidden")

    def end_headers(self) -> None:
        lengths = [line for line in self._headers_buffer if line.startswith(b"Content-Length:")]  # type: ignore[attr-defined]
        self._sent = lengths[-1].partition(b":")[2].strip().decode() if lengths else "0"
        super().end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        self._status = getattr(code, "value", code)

    def log_error(self, *arguments: object) -> None:
        """Log nothing: the access log has the status."""

    def handle_one_request(self) -> None:
        self._status = None
        super().handle_one_request()
        if self._status is not None:
            moment = time.strftime("%d/%b/%Y:%H:%M:%S %z")
            referer = self.headers.get("Referer", "-") if hasattr(self, "headers") else "-"
            agent = self.headers.get("User-Agent", "-") if hasattr(self, "headers") else "-"
            sys.stdout.write(
                f'{self.client_address[0]} - - [{moment}] "{self.requestline}" {self._status} '
                f'{self._sent} "{referer}" "{agent}" "-"\n'
            )
            sys.stdout.flush()


class Server(http.server.ThreadingHTTPServer):
    """Listens on all IPv4 addresses."""

    daemon_threads = True
    address_family = socket.AF_INET

    def server_bind(self) -> None:
        # The standard library's method looks up the host's name first.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    port = int(os.environ.get("NGINX_PORT", "80"))
    Server(("0.0.0.0", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
