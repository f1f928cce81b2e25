"""The official release: whole, refused, cut, forged, on a full disk. A real server, tiny programs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from release_server import program, serving, whole_release  # noqa: E402

from localkube.controlplane import binaries, download  # noqa: E402
from localkube.errors import LocalClusterError  # noqa: E402


@pytest.fixture
def release():
    return whole_release()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, no program on PATH, and no way but the download."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "download")
    return tmp_path / "cache" / "trainyard" / "controlplane"


@pytest.fixture
def server(release, monkeypatch):
    monkeypatch.setattr(download, "DIGESTS", release.digests())
    with serving(release) as url:
        monkeypatch.setenv("TRAINYARD_KUBERNETES_URL", url)
        monkeypatch.setenv("TRAINYARD_ETCD_URL", url)
        yield url


@pytest.fixture(autouse=True)
def no_tools(monkeypatch):
    """Our tools are built, not downloaded; their own tests are elsewhere."""
    monkeypatch.setattr(binaries, "_with_tools", lambda found, report: found)


def obtain():
    lines = []
    return binaries.obtain(report=lines.append), lines


def refusal():
    with pytest.raises(LocalClusterError) as error:
        binaries.obtain(report=lambda line: None)
    return error.value


def folders(cache):
    return [path for path in cache.iterdir() if path.is_dir()] if cache.exists() else []


def test_a_release_is_downloaded_checked_and_run(server, cache):
    control_plane, lines = obtain()
    assert control_plane.origin == "download"
    for name in binaries.COMPONENTS:
        said = subprocess.run(control_plane.argv(name), capture_output=True, text=True, check=True).stdout
        assert said == f"I am {name}\n"
    assert not control_plane.has("gateway")
    assert any("kubectl" in line for line in lines)


def test_the_second_time_it_comes_from_the_cache(server, release, cache, monkeypatch):
    obtain()
    asked = len(release.requests)
    monkeypatch.delenv("TRAINYARD_CONTROLPLANE")
    control_plane, _ = obtain()
    assert control_plane.origin == "cache"
    assert len(release.requests) == asked


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_refusal_names_the_address_and_the_remedies(server, release, cache, status):
    release.statuses[release.kubernetes("kube-scheduler")] = status
    error = refusal()
    assert str(status) in error.about
    assert "kube-scheduler" in error.about
    assert "TRAINYARD_KUBERNETES_URL" in error.fix
    assert "Go" in error.fix


def test_a_server_that_is_not_there_is_given_up_at_once(server, cache, monkeypatch):
    monkeypatch.setenv("TRAINYARD_KUBERNETES_URL", "http://127.0.0.1:9")
    assert "refused" in refusal().about
    assert folders(cache) == []


def test_a_download_that_was_cut_goes_on_where_it_stopped(server, release, cache):
    path = release.kubernetes("kube-apiserver")
    release.cuts[path] = [50_000, 50_000]
    control_plane, lines = obtain()
    assert control_plane.origin == "download"
    asked = [part for requested, part in release.requests if requested == path]
    assert asked == [None, "bytes=50000-", "bytes=100000-"]
    assert any("continuing" in line for line in lines)


def test_a_server_without_ranges_sends_it_all_again(server, release, cache):
    release.ranges = False
    release.cuts[release.kubernetes("kube-apiserver")] = [50_000]
    assert obtain()[0].origin == "download"


def test_a_download_cut_every_time_is_kept_for_the_next_run(server, release, cache):
    path = release.kubernetes("kube-apiserver")
    release.cuts[path] = [50_000, 1_000, 1_000]
    error = refusal()
    assert "cut 3 times" in error.about
    assert "52,000 bytes are kept" in error.about
    assert [folder.name for folder in folders(cache) if not folder.name.endswith(".partial")] == []
    release.requests.clear()
    assert obtain()[0].origin == "download"
    assert (path, "bytes=52000-") in release.requests


def test_wrong_bytes_are_deleted_and_reported(server, release, cache):
    release.files[release.kubernetes("kubectl")] = program("something else")
    error = refusal()
    assert "wrong checksum" in error.what
    assert error.about.endswith("/kubectl")
    left = [path.name for folder in folders(cache) for path in folder.iterdir()]
    assert not any(name.startswith("kubectl") for name in left)


def test_a_rest_of_another_file_is_downloaded_again_from_its_start(server, release, cache):
    partial = cache / f"{binaries._downloaded().name}.partial"
    partial.mkdir(parents=True)
    (partial / "kubectl.part").write_bytes(b"x" * 1000)
    assert obtain()[0].origin == "download"


def test_a_release_of_which_no_digest_is_known_is_not_downloaded(server, release, cache, monkeypatch):
    monkeypatch.setattr(download, "DIGESTS", {})
    assert "no digest of v1.36" in refusal().about
    assert release.requests == []


def test_a_full_disk_is_explained_and_given_back(server, cache, tmp_path, monkeypatch):
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], check=True, env=environment)
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        error = refusal()
        assert "the disk is full" in error.what
        assert "free space" in error.fix
        assert shutil.disk_usage(disk).free > 250_000
    finally:
        subprocess.run(["umount", disk], check=True, env=environment)


def test_a_cache_that_cannot_be_written_is_explained(server, tmp_path, monkeypatch):
    (tmp_path / "in-the-way").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in-the-way"))
    monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "download")
    error = refusal()
    assert "cannot write" in error.what
    assert "XDG_CACHE_HOME" in error.fix
