"""The four real components, started as a cluster starts them: they work together, and let no stranger in."""

import json
import os
import socket
import ssl
import urllib.error
import urllib.request

import psutil
import pytest

from localkube.controlplane import binaries
from localkube.controlplane.components import ETCD_SOCKET
from localkube.runtime.client import short_name

from ..security.users import as_user
from .bare_control_plane import bare
from .restrictions import NOBODY

ALL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path_factory.mktemp("all-four"), control_plane, components=ALL) as running:
        yield running


def fetch(running, path, *, client):
    """Return the status of a request with the certificate ``client``."""
    pki = running.paths.pki
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    try:
        return urllib.request.urlopen(running.server + path, context=context, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code


def _words(process):
    try:
        return process.cmdline()
    except psutil.ZombieProcess:  # of an earlier test of this worker
        return []


def test_kubectl_reaches_a_ready_server_of_the_right_version(running):
    assert running.run("get", "--raw", "/readyz") == "ok"
    version = json.loads(running.run("version", "--output=json"))
    assert version["serverVersion"]["gitVersion"].startswith("v1.37.")
    assert version["serverVersion"] == {**version["serverVersion"], "major": "1", "minor": "37"}


def test_service_accounts_get_tokens_and_no_more_than_their_rights(running):
    running.run("wait", "--for=create", "serviceaccount/default", "--timeout=120s")
    token = running.run("create", "token", "default")
    assert token.count(".") == 2
    answer = running.run("auth", "can-i", "--list", "--as=system:serviceaccount:default:default")
    assert "pods" not in answer


def test_a_component_has_its_own_rights_only(running):
    assert fetch(running, "/api/v1/pods", client="scheduler") == 200
    assert fetch(running, "/api/v1/secrets", client="scheduler") == 403


def connect(path):
    with short_name(path) as name, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(name)


def test_etcd_listens_on_no_port_and_for_the_owner_of_the_cluster_alone(running):
    etcd = next(process for process in psutil.Process().children() if "etcd" in _words(process)[:2])
    assert etcd.net_connections("tcp") == []
    path = running.paths.root / ETCD_SOCKET
    assert path.parent.stat().st_mode & 0o077 == 0
    connect(path)
    if os.getuid() == 0:
        with pytest.raises(AssertionError, match="PermissionError"):
            as_user(NOBODY, lambda: connect(path))
