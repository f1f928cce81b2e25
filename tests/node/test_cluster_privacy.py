"""What a running cluster shows to the rest of its machine: one port, and no secrets."""

import base64
import os
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml
from soak.resources import namespaces

from .clusters import eventually


def on_the_host(cluster):
    """Return the processes of the cluster that are in the host's network."""
    here = str(Path("/proc/self/ns/net").readlink())
    return [process for process in cluster.processes() if here in namespaces(process.pid)]


def status_of(cluster, path, *, token=None):
    """Return the status of a request to the API without a certificate."""
    context = ssl.create_default_context(cafile=str(cluster.root / "pki" / "ca.crt"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(cluster.status["server"] + path, headers=headers)
    try:
        return urllib.request.urlopen(request, context=context, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code


def test_one_port_listens_on_the_loopback_and_no_other(cluster):
    listening = [
        (connection.laddr.ip, connection.laddr.port)
        for process in on_the_host(cluster)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
        or (connection.type == socket.SOCK_DGRAM and not connection.raddr)
    ]
    assert set(listening) == {("127.0.0.1", cluster.status["api_port"])}


def test_the_control_plane_and_the_pods_are_not_in_the_hosts_network(cluster):
    names = {word for process in on_the_host(cluster) for word in process.cmdline()}
    assert (
        not {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "localkube.kubelet"}
        & names
    )
    interfaces = [path.name for path in Path("/sys/class/net").iterdir()]
    assert not [name for name in interfaces if name.startswith(("trainyard", "gate-", "pod"))]


def test_strangers_may_ask_for_health_and_nothing_else(cluster):
    for path in ("/readyz", "/livez", "/healthz"):
        eventually(lambda path=path: status_of(cluster, path), expected=200)
    for path in ("/", "/api", "/version", "/metrics", "/openapi/v3", "/api/v1/pods"):
        assert status_of(cluster, path) in (401, 403), path
    assert status_of(cluster, "/api/v1/pods", token="forged") == 401


def test_the_authority_of_one_cluster_is_not_that_of_another(cluster, tmp_path):
    from localkube.controlplane import certificates

    certificates.issue(tmp_path, node_addresses=[])
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        urllib.request.urlopen(cluster.status["server"] + "/readyz", context=context, timeout=120)
    mine = ssl.create_default_context(cafile=str(cluster.root / "pki" / "ca.crt"))
    mine.load_cert_chain(tmp_path / "admin.crt", tmp_path / "admin.key")
    with pytest.raises((urllib.error.HTTPError, OSError)) as caught:
        urllib.request.urlopen(cluster.status["server"] + "/api/v1/pods", context=mine, timeout=120)
    assert getattr(caught.value, "code", 401) == 401


def test_no_command_line_and_no_environment_of_a_component_shows_a_secret(cluster):
    secrets = {key.name: key.read_text() for key in (cluster.root / "pki").glob("*.key")}
    user = yaml.safe_load(Path(cluster.status["kubeconfig"]).read_text())["users"][0]["user"]
    secrets["kubeconfig"] = base64.b64decode(user["client-key-data"]).decode()
    processes = cluster.processes()
    assert len(processes) >= 7
    shown = " ".join(
        word for process in processes for word in [*process.cmdline(), *process.environ().values()]
    )
    for name, text in secrets.items():
        lines = [line for line in text.splitlines() if line and not line.startswith("-")]
        assert lines
        assert not [line for line in lines if line in shown], name
    assert user["client-key-data"] not in shown


def test_files_are_their_owners_alone(cluster):
    """What pods read or write there is in directories that are closed themselves, or in one that is."""
    open_to_others, of_pods = [], [cluster.root / name for name in ("kit", "pods", "volumes")]
    for folder, _, names in os.walk(cluster.home / "trainyard"):
        if any(place in (Path(folder), *Path(folder).parents) for place in of_pods):
            continue
        for path in [Path(folder), *(Path(folder, name) for name in names)]:
            if path.stat().st_mode & 0o077:
                open_to_others.append(f"{path} {path.stat().st_mode:o}")
    assert not open_to_others
    for name in ("pods", "volumes"):
        assert (cluster.root / name).stat().st_mode & 0o777 == 0o700


def test_the_users_own_kubeconfig_is_left_alone(cluster):
    assert Path(cluster.status["kubeconfig"]).is_relative_to(cluster.home)
    kubeconfig = Path.home() / ".kube" / "config"
    assert not kubeconfig.exists() or str(cluster.status["api_port"]) not in kubeconfig.read_text()


def test_no_control_group_is_made(cluster):
    mine = Path("/proc/self/cgroup").read_text()
    assert {Path(f"/proc/{process.pid}/cgroup").read_text() for process in cluster.processes()} == {mine}
