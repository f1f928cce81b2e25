"""A small release server for tests: it speaks real HTTP, and can refuse, cut and lie."""

import contextlib
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from localkube.controlplane import ETCD, KUBERNETES
from localkube.paths import target

SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def program(name: str, *, size: int = 200_000) -> bytes:
    """Return a program that says its name, padded to ``size`` so that it can be cut."""
    text = f"#!/bin/sh\necho I am {name}\nexit 0\n"
    return (text + "#" * (size - len(text))).encode()


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

    def kubernetes(self, name: str) -> str:
        system, machine = target()
        return f"/{KUBERNETES}/bin/{system}/{machine}/{name}"

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file by its path, as the kit keeps them."""
        return {path[1:]: hashlib.sha256(content).hexdigest() for path, content in self.files.items()}

    def etcd(self) -> str:
        system, machine = target()
        return f"/{ETCD}/etcd-{ETCD}-{system}-{machine}.tar.gz"


def whole_release() -> Release:
    """Return a release as the official servers lay it out, with tiny programs."""
    release = Release()
    for name in SERVERS:
        content = program(name)
        release.files[release.kubernetes(name)] = content
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name in ("README.md", "etcd", "etcdctl"):
            content = program(name, size=1000)
            member = tarfile.TarInfo(f"etcd-{ETCD}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    content = archive.getvalue()
    release.files[release.etcd()] = content
    return release


@contextlib.contextmanager
def serving(release: Release, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve ``release`` on an address of this machine and yield the server's URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            release.requests.append((self.path, asked))
            status = release.statuses.get(self.path, 200 if self.path in release.files else 404)
            if status != 200:
                self.send_error(status)
                return
            content, first = release.files[self.path], 0
            if asked and release.ranges:
                first = int(asked.removeprefix("bytes=").rstrip("-"))
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
