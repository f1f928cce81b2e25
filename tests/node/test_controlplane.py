"""The four real components, started as a cluster starts them: they work together, and let no stranger in."""

import json
import ssl
import time
import urllib.error
import urllib.request

import psutil
import pytest

from localkube.controlplane import binaries

from .bare_control_plane import bare

ALL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "demo"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "none"}]},
        },
    },
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path_factory.mktemp("all-four"), control_plane, components=ALL) as running:
        yield running


@pytest.fixture(scope="module")
def demo(running):
    running.run("create", "namespace", "demo")
    running.run("apply", "-f", "-", stdin=json.dumps(DEPLOYMENT))
    return running


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


def eventually(look, *, wanted, seconds=30):
    end = time.monotonic() + seconds
    while (seen := look()) != wanted:
        assert time.monotonic() < end, f"wanted {wanted}, the last seen is {seen}"
        time.sleep(0.1)


def names(running, kind):
    return running.run("-n", "demo", "get", kind, "-o", "name").split()


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
    assert version["serverVersion"]["gitVersion"].startswith("v1.36.")
    assert version["serverVersion"] == {**version["serverVersion"], "major": "1", "minor": "36"}


def test_a_deployment_becomes_pods_that_wait_for_nodes(demo):
    eventually(
        lambda: demo.run("-n", "demo", "get", "pods", "-o", "jsonpath={.items[*].status.phase}"),
        wanted="Pending Pending",
    )
    reason = "jsonpath={.items[0].status.conditions[?(@.type=='PodScheduled')].reason}"
    eventually(lambda: demo.run("-n", "demo", "get", "pods", "-o", reason), wanted="Unschedulable")


def test_a_namespace_goes_with_all_that_is_in_it(running):
    running.run("create", "namespace", "short-lived")
    running.run("-n", "short-lived", "create", "configmap", "things", "--from-literal=a=b")
    running.run("delete", "namespace", "short-lived", "--timeout=120s")
    assert "short-lived" not in running.run("get", "namespaces", "-o", "name")


def test_every_namespace_has_its_account_and_the_authority(demo):
    for kind, name in (("serviceaccount", "default"), ("configmap", "kube-root-ca.crt")):
        eventually(lambda kind=kind: names(demo, kind), wanted=[f"{kind}/{name}"])


def test_service_accounts_get_tokens_and_no_more_than_their_rights(demo):
    token = demo.run("-n", "demo", "create", "token", "default")
    assert token.count(".") == 2
    answer = demo.run("auth", "can-i", "--list", "--as=system:serviceaccount:demo:default")
    assert "pods" not in answer


def test_a_component_has_its_own_rights_only(running):
    assert fetch(running, "/api/v1/pods", client="scheduler") == 200
    assert fetch(running, "/api/v1/secrets", client="scheduler") == 403


def test_etcd_talks_to_the_api_server_and_to_nobody_else(running):
    flags = [
        word for line in command_lines(running) for word in line if word.startswith("--listen-client-urls=")
    ]
    server = flags[0].partition("=")[2]
    for client in (None, "admin", "kubelet"):
        with pytest.raises(OSError, match=r"(?i)alert|reset|eof|closed|remote end"):
            fetch(running, "/version", server=server, authority="etcd-ca", client=client)
    assert (
        fetch(running, "/version", server=server, authority="etcd-ca", client="apiserver-etcd-client") == 200
    )
