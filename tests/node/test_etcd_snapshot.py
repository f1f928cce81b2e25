"""An etcd snapshot: a new cluster has its first writes done, and nothing of another cluster."""

import json
import os

import pytest

from localkube.controlplane import binaries, etcd_snapshot
from localkube.kubelet.nodes.node import register_node
from localkube.kubelet.resources.node_settings import NodeSettings
from localkube.kubelet.volumes.object_cache import ROOT_CA, ObjectCache

from .bare_control_plane import bare


@pytest.fixture(scope="module")
def control_plane():
    return binaries.obtain(report=lambda text: None)


@pytest.fixture(scope="module")
def snapshot(control_plane, tmp_path_factory):
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        assert etcd_snapshot.obtain(control_plane, report=lines.append, create=False) is None
        folder = etcd_snapshot.obtain(control_plane, report=lines.append)
        assert folder is not None, lines
        lines_before = len(lines)
        assert etcd_snapshot.obtain(control_plane, report=lines.append) == folder
        assert len(lines) == lines_before
    return folder


@pytest.fixture(scope="module")
def cluster(control_plane, snapshot, tmp_path_factory):
    directory = tmp_path_factory.mktemp("from-snapshot")
    etcd_snapshot.restore(snapshot, directory / "etcd")
    (directory / "known-roles").touch()
    with bare(directory, control_plane, components=("etcd", "kube-apiserver")) as running:
        yield running


def test_a_copy_has_the_same_bytes_wherever_the_holes_are(tmp_path):
    extents = {0: 4_096, 65_536: 300_000, 1 << 20: 70_000, 3 << 20: 10}
    original = tmp_path / "snapshot" / "db"
    original.parent.mkdir()
    with original.open("wb") as file:
        for start, length in extents.items():
            file.seek(start)
            file.write(os.urandom(length))
        file.truncate(4 << 20)
    etcd_snapshot.restore(original.parent, tmp_path / "etcd")
    assert (tmp_path / "etcd" / "db").read_bytes()[: 4 << 20] == original.read_bytes()


def test_nothing_but_the_data_is_kept_and_no_key_is_in_it(snapshot):
    assert [path.name for path in snapshot.parent.iterdir() if "lock" not in path.name] == [snapshot.name]
    assert [path.name for path in snapshot.iterdir()] == ["member"]
    files = [path for path in snapshot.rglob("*") if path.is_file()]
    assert not [path for path in files if b"PRIVATE KEY" in path.read_bytes()]
    assert sum(path.stat().st_blocks * 512 for path in files) < 4 << 20


def test_a_cluster_from_it_has_accounts_and_roles_before_any_controller_runs(cluster):
    accounts = cluster.run("get", "serviceaccounts", "-A", "-o", "name")
    assert accounts.count("serviceaccount/default") == 4
    assert json.loads(cluster.run("get", "clusterrole", "admin", "-o", "json"))["rules"]
    assert not cluster.paths.known_roles.exists(), "later starts look the roles up"


async def test_a_node_takes_pods_and_gives_them_its_authority_before_any_controller_runs(cluster):
    settings = NodeSettings(name="node-0", index=0, cpus=1, memory=1 << 30, storage=1 << 30)
    async with cluster.api() as api:
        await register_node(api, settings, admin=api, version="v1.37.2")
        pod = {"metadata": {"namespace": "default"}, "spec": {"nodeName": "node-0"}}
        authority = await ObjectCache(lambda node: api, authority="CA").configmap(pod, ROOT_CA)
    assert authority == {"data": {"ca.crt": "CA"}}
    assert "taints" not in json.loads(cluster.run("get", "node", "node-0", "-o", "json"))["spec"]


def test_a_cluster_from_it_trusts_its_own_authorities_only(cluster):
    trusted = json.loads(
        cluster.run(
            "-n", "kube-system", "get", "configmap", "extension-apiserver-authentication", "-o", "json"
        )
    )["data"]
    for key, authority in (("client-ca-file", "ca"), ("requestheader-client-ca-file", "front-proxy-ca")):
        assert trusted[key].strip() == (cluster.paths.pki / f"{authority}.crt").read_text().strip()


def test_a_cluster_from_it_holds_no_secret_and_no_authority_of_another(cluster):
    assert json.loads(cluster.run("get", "secrets", "-A", "-o", "json"))["items"] == []
    published = json.loads(cluster.run("get", "configmaps", "-A", "-o", "json"))["items"]
    assert "kube-root-ca.crt" not in {item["metadata"]["name"] for item in published}


def test_a_failure_to_bake_is_said_and_is_no_error(control_plane, tmp_path, monkeypatch):
    (tmp_path / "in-the-way").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in-the-way"))
    lines = []
    assert etcd_snapshot.obtain(control_plane, report=lines.append) is None
    assert "cannot write" in lines[-1]
