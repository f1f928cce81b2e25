"""Setup: which build of torch is installed; a command that begins while Kubernetes is still built."""

import contextlib
import hashlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from ..node.tls import Authority
from ..patience import until
from .test_tools import ROOT, setup, tool

packages = tool("install_packages")
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
TORCH_INDEX = "download.pytorch.org"


@contextlib.contextmanager
def serving(handler, *, pair=None):
    """Serve HTTP, or TLS with a pair of files, on a port of the loopback; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.block_on_close = False  # a client may keep its connection
        if pair:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.cert, pair.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class Proxy(BaseHTTPRequestHandler):
    """A proxy whose every CONNECT leads to one server."""

    def __init__(self, goal, asked, *arguments):
        self.goal, self.asked = goal, asked
        super().__init__(*arguments)

    def do_CONNECT(self):
        self.asked.append(self.path)
        if self.goal is None:
            self.rfile.read()  # until the client gives up
            return
        self.send_response(200)
        self.end_headers()
        relay(self.connection, self.goal)

    def log_message(self, *arguments):
        pass


def relay(client, port):
    """Pass bytes both ways until one side ends."""
    with socket.create_connection(("127.0.0.1", port)) as server:

        def copy(source, target):
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=copy, args=(server, client))
        back.start()
        copy(client, server)
        back.join()


@pytest.fixture
def cpu_index(tmp_path):
    """The folder of a local index that has the pinned torch and torchvision as CPU builds."""
    for name in ("torch", "torchvision"):
        version = f"{PINS[name]}+cpu"
        folder = tmp_path / "index" / "whl" / "cpu" / name
        folder.mkdir(parents=True)
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            about = f"{name}-{version}.dist-info"
            archive.writestr(
                f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            archive.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{about}/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>'
        (folder / "index.html").write_text(link)
    return tmp_path / "index"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Uv's environment: an empty cache, and a proxy on the port that is given."""
    authority = Authority(tmp_path, "authority")

    def make(port):
        return os.environ | {
            "UV_CACHE_DIR": str(tmp_path / "uv"),
            "SSL_CERT_FILE": str(authority.cert),
            "HTTPS_PROXY": f"http://127.0.0.1:{port}",
        }

    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.delenv(packages.TORCH, raising=False)
    make.authority = authority
    return make


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_the_cpu_build_is_taken_where_its_index_has_the_pinned_versions(environment, cpu_index, capsys):
    requests = []
    pair = environment.authority.issue("index", host=TORCH_INDEX)
    with (
        serving(partial(Quiet, directory=cpu_index), pair=pair) as index,
        serving(partial(Proxy, index, requests)) as proxy,
    ):
        assert packages.torch_build(environment(proxy)) == "cpu"
    assert "the CPU build" in capsys.readouterr().out
    assert set(requests) == {f"{TORCH_INDEX}:443"}


def test_an_index_that_does_not_answer_costs_seconds_and_not_minutes(environment, monkeypatch, capsys):
    monkeypatch.setattr(packages, "PROBE_SECONDS", 1)
    with serving(partial(Proxy, None, [])) as proxy:
        assert packages.torch_build(environment(proxy)) == "default"
    assert "PyTorch's index of CPU builds: " in capsys.readouterr().out


def test_uv_asks_the_servers_that_pip_is_configured_for(monkeypatch):
    for name in packages.SETTINGS.values():
        monkeypatch.delenv(name, raising=False)
    configuration = """:env:.cert='/etc/ca.crt'
global.extra-index-url='https://a.example/simple https://b.example/simple'
global.index-url='https://mirror.example/simple'
install.find-links='/one /two'
global.timeout='180'
"""
    assert packages.uv_environment(configuration) == {
        "SSL_CERT_FILE": "/etc/ca.crt",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_SYSTEM_CERTS": "1",
    }
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mine.example")
    assert "UV_DEFAULT_INDEX" not in packages.uv_environment(configuration)


def test_a_full_disk_is_said_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "NEEDED_BYTES", {"cpu": 10**18})
    with pytest.raises(packages.InstallError, match="GB free"):
        packages.check_space(tmp_path, "cpu")


BUILDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from localkube.controlplane import binaries, __main__ as program
from localkube.controlplane.lock import cache_lock
def build(*, report):
    with cache_lock(report) as turn:
        turn("1 of 9 packages compiled")
        time.sleep(100)
binaries.obtain = build
sys.exit(program.main(["--background"]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_build_in_the_background_ends_with_the_program_that_setup_became(tmp_path, number):
    """The program is a sleep here; the build is one that only says that it builds."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import setup
job = setup.Job("control plane", "", [[sys.executable, "-c", {BUILDER!r}, {str(ROOT)!r}]], "")
setup.TIMES = setup.Path({str(tmp_path)!r}) / "setup.json"
setup.start_in_background(job)
setup.exec_command(["sleep", "100"], 1.0, 2.0)
"""
    lock = tmp_path / "trainyard" / "controlplane" / "lock"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as program:
        me = psutil.Process(program.pid)
        (builder,) = until(lambda: lock.exists() and lock.read_text() and me.children())
        assert until(lambda: me.name() == "sleep")
        assert builder.nice() == os.nice(0) + 5
        os.kill(program.pid, number)
    _, alive = psutil.wait_procs([builder], timeout=60)
    assert not alive
    assert setup.json.loads((tmp_path / "setup.json").read_text())["parts"] == [
        {"name": "packages", "seconds": 1.0}
    ]


def test_the_control_plane_is_obtained_by_a_python_without_packages_be_it_the_oldest():
    # Before 3.11.4 a module of the standard library lacks what a package has, which is not installed yet.
    old = "import sys; sys.version_info = (3, 11, 0); sys.path.insert(0, '.')"
    look = f"{old}; import localkube.controlplane.__main__"
    subprocess.run([sys.executable, "-I", "-S", "-c", look], cwd=ROOT, check=True)
