"""A control plane without nodes on loopback: the real servers, for tests of the parts of the kubelet.

Nothing of the site is here: no namespaces, no kubelet, and no scheduler unless it is named.
"""

import contextlib
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localkube.api_client import Api
from localkube.controlplane import certificates, client_credentials
from localkube.controlplane.binaries import ControlPlaneBinaries
from localkube.controlplane.components import ComponentCommand, ListenAddresses, commands
from localkube.paths import ClusterPaths, private_dir
from localkube.runtime.syscalls import die_with_parent

from ..patience import PATIENCE

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")


@dataclass(frozen=True)
class TestPaths(ClusterPaths):
    """A cluster's files in a directory of the test's own."""

    __test__ = False
    directory: Path = Path()

    @property
    def root(self) -> Path:
        return self.directory


@dataclass(frozen=True)
class BareControlPlane:
    """A running API server, and what is needed to speak to it as an administrator."""

    server: str
    paths: ClusterPaths
    kubectl: tuple[str, ...]

    @property
    def ca(self) -> Path:
        return self.paths.pki / "ca.crt"

    @property
    def cert(self) -> Path:
        return self.paths.pki / "admin.crt"

    @property
    def key(self) -> Path:
        return self.paths.pki / "admin.key"

    def api(self) -> Api:
        """Return a client, to be entered by the test that uses it."""
        return Api(self.server, ca_file=self.ca, cert_file=self.cert, key_file=self.key)

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints."""
        command = [*self.kubectl, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@contextlib.contextmanager
def bare(
    directory: Path,
    control_plane: ControlPlaneBinaries,
    *,
    components: tuple[str, ...] = COMPONENTS,
    addresses: ListenAddresses | None = None,
    change: Callable[[ComponentCommand], ComponentCommand] = lambda component: component,
) -> Iterator[BareControlPlane]:
    """Run the named components, yield when the API server is ready, and stop them.

    Args:
        directory: For certificates, data and logs.
        control_plane: The binaries.
        components: Which to start.
        addresses: Where they listen; by default on free ports of loopback.
        change: Applied to each before.
    """
    paths = TestPaths("bare", directory)
    addresses = addresses or _on_loopback()
    certificates.issue(paths.pki, node_addresses=[addresses.advertise])
    private_dir(paths.etcd)
    private_dir(paths.logs)
    client_credentials.write_kubeconfig(
        paths.kubeconfig, server=addresses.api, name="bare", pki=paths.pki, user="admin"
    )
    selected = [c for c in commands(paths, control_plane, addresses=addresses) if c.name in components]
    with contextlib.ExitStack() as stack:
        for component in selected:
            stack.enter_context(_running(change(component), paths))
            if component.name == "kube-apiserver":
                _wait_until_ready(f"{addresses.api}/readyz", component, paths)
        kubectl = control_plane.argv("kubectl", "--kubeconfig", str(paths.kubeconfig))
        yield BareControlPlane(addresses.api, paths, tuple(kubectl))


@contextlib.contextmanager
def _running(component: ComponentCommand, paths: ClusterPaths) -> Iterator[None]:
    with _log(component, paths).open("wb") as log:
        process = subprocess.Popen(
            component.argv,
            cwd=paths.root,
            env=dict(component.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, component: ComponentCommand, paths: ClusterPaths) -> None:
    tls = ssl.create_default_context(cafile=str(paths.pki / "ca.crt"))
    deadline, last = time.monotonic() + PATIENCE, "no answer yet"
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, context=tls, timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            last = str(error)
        time.sleep(0.05)
    tail = _log(component, paths).read_text(errors="replace")[-2000:]
    raise TimeoutError(f"{component.name} is not ready: {last}\n{tail}")


def _log(component: ComponentCommand, paths: ClusterPaths) -> Path:
    return paths.logs / f"{component.name}.log"


def _on_loopback() -> ListenAddresses:
    at = "127.0.0.1"
    with socket.socket() as listener:
        listener.bind((at, 0))
        port = listener.getsockname()[1]
    return ListenAddresses(api_bind=at, api_port=port, advertise=at)
