"""A small release server for tests: it speaks real HTTP, and can refuse, cut and lie."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Release:
    """What a server serves and how it misbehaves.

    Attributes:
        files: The content by path.
        statuses: A status to answer instead, by path.
        cuts: After how many bytes an answer breaks off, by path: one entry is used up a request.
        ranges: False to ignore requests for a part.
        holds: Sends half of an answer, and waits for this event before the rest, by path.
        requests: What was asked for: the path and the Range header.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    holds: dict[str, threading.Event] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextlib.contextmanager
def serving(release: Release, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve ``release`` on an address of this machine and yield the server's URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            byte_range = self.headers.get("Range")
            release.requests.append((self.path, byte_range))
            status = release.statuses.get(self.path, 200 if self.path in release.files else 404)
            if status != 200:
                self.send_error(status)
                return
            content, first = release.files[self.path], 0
            if byte_range and release.ranges:
                first = int(byte_range.removeprefix("bytes=").rstrip("-"))
                if first >= len(content):
                    self.send_error(416)
                    return
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(content) - first))
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            cuts, hold = release.cuts.get(self.path), release.holds.get(self.path)
            if hold is not None:
                middle = (first + len(content)) // 2
                self.wfile.write(content[first:middle])
                hold.wait()
                first = middle
            self.wfile.write(content[first : first + cuts.pop(0)] if cuts else content[first:])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((host, 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="release-server"
    )
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        for hold in release.holds.values():
            hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
