"""The four real components, started as a cluster starts them: they work together, and let no stranger in."""

import json
import ssl
import urllib.error
import urllib.request

import psutil
import pytest

from localkube.controlplane import binaries

from .bare_control_plane import bare

ALL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path_factory.mktemp("all-four"), control_plane, components=ALL) as running:
        yield running


def fetch(running, path, *, server=None, authority="ca", client=None):
    """Return the status of a request without credentials, or with the certificate ``client``."""
    pki = running.paths.pki
    context = ssl.create_default_context(cafile=pki / f"{authority}.crt")
    if client:
        context.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    try:
        return urllib.request.urlopen((server or running.server) + path, context=context, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code


def _words(process):
    try:
        return process.cmdline()
    except psutil.ZombieProcess:  # of an earlier test of this worker
        return []


def command_lines(running):
    """Return the components' command lines as anybody on the machine can read them."""
    lines = [_words(process) for process in psutil.Process().children()]
    folder = str(running.paths.root)
    return [line for line in lines if any(folder in word for word in line)]


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


def test_etcd_talks_to_the_api_server_and_to_nobody_else(running):
    flags = [
        word for line in command_lines(running) for word in line if word.startswith("--listen-client-urls=")
    ]
    server = flags[0].partition("=")[2]
    for client in (None, "admin", "scheduler"):
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|closed|remote end"):
            fetch(running, "/version", server=server, authority="etcd-ca", client=client)
    assert (
        fetch(running, "/version", server=server, authority="etcd-ca", client="apiserver-etcd-client") == 200
    )
