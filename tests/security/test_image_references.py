"""An image's name is a request that this machine sends: not to itself, and what it is told stays untold.

The names, redirects and realms lead to a server that listens on every address of the machine.
"""

import json
import os
import socketserver
import threading
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from localkube.runtime.syscalls import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, mount, unshare

from ..node.clusters import list_registry, pod, state
from ..rows import slow
from ..unit.image_registry import serve
from ..unit.oci_images import images, program, small
from .users import USERS, become, folder_of

SECRET = "a-secret-of-the-machine"
HOSTS = (
    "127.0.0.1",
    "127.0.0.2",
    "127.1",
    "0",
    "0.0.0.0",
    "localhost",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "rebound.example",
)
METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]")


class Recording(socketserver.BaseRequestHandler):
    def handle(self):
        self.server.heard.append(self.request.recv(1 << 16))
        body = json.dumps({"errors": [{"code": SECRET, "message": SECRET}]}).encode()
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\nX-Secret: {SECRET}\r\n\r\n"
        self.request.sendall(head.encode() + body)


@contextmanager
def listening():
    """Yield a server of this machine's own; ``heard`` has what has reached it, ``port`` its port."""

    class Server(socketserver.ThreadingTCPServer):
        address_family = socketserver.socket.AF_INET6
        daemon_threads = True
        heard: list[bytes] = []

    with Server(("::", 0), Recording) as server:
        server.port = server.server_address[1]
        server.heard = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="private server")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=USERS)
def pull(request, monkeypatch):
    """Pull as a pod of that user's cluster does; ``rebound.example`` is the loopback."""
    program()  # before the home is another
    with folder_of(request.param) as home:
        (home / "hosts").write_text("127.0.0.1 localhost rebound.example\n")
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))

        def enter():
            if os.getuid() == 0:
                unshare(CLONE_NEWNS)
                mount(None, "/", None, MS_REC | MS_PRIVATE)
                mount(str(home / "hosts"), "/etc/hosts", None, MS_BIND)
            become(request.param)

        def pulled(reference, **options):
            options = {"for_pod": True, "enter": enter, "seconds": 60} | options
            return images(home / "store", "pull", reference, **options)

        pulled.home = home
        yield pulled


@pytest.mark.parametrize("host", HOSTS)
def test_no_name_of_the_machine_s_loopback_is_a_registry(pull, host):
    with listening() as server:
        done = pull(f"{host}:{server.port}/a/b:1")
        assert done.status == 1
        assert not server.heard
        assert SECRET not in done.message


@pytest.mark.parametrize("host", METADATA)
def test_no_metadata_service_and_no_link_is_a_registry(pull, host):
    done = pull(f"{host}/a/b:1")
    assert done.reason == "registry", done.message
    assert "is an address of this machine or a metadata service" in done.message


@pytest.mark.parametrize("proxied", ["127.0.0.1", "0x7f000001", "127.1", "rebound.example"])
def test_a_proxy_is_not_asked_for_the_loopback_either(pull, proxied):
    """A proxy on the machine would resolve the name there."""
    with listening() as server:
        proxy = f"http://127.0.0.1:{server.port}"
        for reference in (f"{proxied}:443/a/b:1", f"127.0.0.1:{server.port}/a/b:1"):
            done = pull(reference, env={"HTTPS_PROXY": proxy, "https_proxy": proxy})
            assert done.status == 1
        assert not server.heard


@pytest.mark.parametrize(
    ("host", "way"),
    [
        ("127.0.0.1", "blob"),  # which is tried again
        *product(("127.0.0.1", "localhost", "[::1]"), ("manifest", "token")),
        *slow(("localhost", "blob"), ("[::1]", "blob")),
    ],
)
def test_no_redirect_and_no_realm_leads_to_the_loopback(pull, way, host):
    source = small()
    with listening() as server, serve() as registry:
        list_registry(pull.home, registry.address)
        reference = registry.add("a:1", source)
        place = f"http://{host}:{server.port}/v1/secret?of=the-machine"
        if way == "token":
            registry.credentials, registry.tokens, registry.realm = "ada:secret", True, place
        kind = {"manifest": "/manifests/", "blob": "/blobs/"}.get(way, "nothing")
        registry.fault = lambda request, path: (
            kind in path and (request.answer(307, b"", Location=place) or True)
        )
        done = pull(reference)
        assert done.status == 1
        assert not server.heard
        assert "secret" not in done.message


def test_errors_do_not_repeat_a_registrys_answer(pull):
    def reveal(request, path):
        body = json.dumps({"errors": [{"code": SECRET, "message": SECRET, "detail": SECRET}]}).encode()
        request.answer(next(statuses, 418), body, X_Secret=SECRET)
        return True

    def garble(request, path):
        request.wfile.write(f"HTTP/1.1 200 {SECRET}\r\n{SECRET}\r\n\r\n{SECRET}".encode())
        request.close_connection = True
        return True

    with serve() as registry:
        list_registry(pull.home, registry.address)
        reference = registry.add("a:1", small())
        statuses = iter((400, 401, 403, 404, 418, 302))
        for fault in (*[reveal] * 6, garble):
            registry.fault = fault
            done = pull(reference)
            assert done.status == 1
            assert SECRET not in done.message, done.message
        registry.fault = None
        for content in (
            SECRET,
            json.dumps({"mediaType": SECRET, "config": {"digest": SECRET}, "layers": []}),
        ):
            registry.manifests["a/1"] = ("application/vnd.oci.image.manifest.v1+json", content.encode())
            assert f'"{SECRET}"' not in pull(reference).message


def test_a_registry_that_the_owner_lists_or_names_is_pulled_from(pull):
    with serve() as registry:
        reference = registry.add("a:1", small())
        assert pull(reference).reason == "registry"
        assert pull(reference, for_pod=False).status == 0
        list_registry(pull.home, registry.address)
        assert pull(reference).status == 0


def test_a_mirror_for_all_registries_lists_none_of_those_that_pods_name(pull):
    with listening() as server, serve() as mirror:
        folder = Path(pull.home) / "config" / "trainyard" / "certs.d" / "_default"
        folder.mkdir(parents=True)
        (folder / "hosts.toml").write_text(f'[host."http://{mirror.address}"]\n')
        mirror.add("team/a:1", small())
        assert pull("registry.invalid/team/a:1").status == 0
        assert pull(f"127.0.0.1:{server.port}/team/b:1").status == 1
        assert not server.heard


@pytest.mark.namespaces
def test_an_image_reference_reaches_nothing_on_the_machine(pods):
    with listening() as server:
        reference = f"127.0.0.1:{server.port}/a/b:1"
        name = pods.create(pod(main={"image": reference, "command": ["true"]}))
        waiting = pods.until(name, lambda pod: state(pod).get("waiting", {}).get("reason") == "ErrImagePull")
        assert "is an address of this machine" in state(waiting)["waiting"]["message"]
        assert not server.heard
