"""What is kept on disk: who uses it, and that clearing takes nothing that somebody needs."""

import json
from pathlib import Path

import pytest

from localkube.cluster import cache
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache with an old version, a part that a cluster uses, and something of another kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "")
    cache_folder = tmp_path / "cache" / "trainyard"
    for name in (
        "controlplane/v0.0.1-used",
        "controlplane/v0.0.1-old",
        "bench/kwok",
        "controlplane/.building-x",
    ):
        (cache_folder / name).mkdir(parents=True)
        (cache_folder / name / "file").write_bytes(b"x" * 5000)
    root = ClusterPaths("lab").root
    root.mkdir(parents=True)
    program = cache_folder / "controlplane" / "v0.0.1-used" / "kubernetes"
    (root / "plan.json").write_text(json.dumps({"components": [{"argv": [str(program), "etcd"]}]}))
    return cache_folder


def kinds(entries):
    return {(entry.what, Path(entry.path).name): entry.used for entry in entries}


def test_each_thing_is_shown_with_its_size_and_who_uses_it(home):
    contents = cache.contents()
    assert kinds(contents) == {
        ("controlplane", "v0.0.1-used"): "cluster lab",
        ("controlplane", "v0.0.1-old"): "",
        ("bench", "kwok"): cache.ON_REQUEST,
        ("cluster", "lab"): "absent",
    }
    sizes = [item.size for item in contents]
    assert sizes == sorted(sizes, reverse=True)
    assert all(5000 <= item.size < 20000 for item in contents if item.what != "cluster")


def test_clearing_removes_what_nobody_needs_and_nothing_else(home):
    assert kinds(cache.clear(None)) == {("controlplane", "v0.0.1-old"): ""}
    assert kinds(cache.clear(None)) == {}
    assert not (home / "controlplane" / "v0.0.1-old").exists()
    assert (home / "controlplane" / "v0.0.1-used" / "file").exists()
    assert (home / "controlplane" / ".building-x" / "file").exists(), "somebody may be making it"


def test_one_kind_is_removed_on_request_but_for_what_a_cluster_uses(home):
    assert kinds(cache.clear("bench")) == {("bench", "kwok"): cache.ON_REQUEST}
    assert kinds(cache.clear("controlplane")) == {("controlplane", "v0.0.1-old"): ""}
    with pytest.raises(LocalClusterError, match="localkube delete"):
        cache.clear("cluster")
