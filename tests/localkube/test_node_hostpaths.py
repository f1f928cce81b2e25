"""The types of hostPath volumes."""

import socket

import pytest

from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.volumes.host_path import HiddenDirectories, check


def test_missing_host_paths_are_created_where_their_type_allows_it(tmp_path):
    for name, kind in (("a/b", "DirectoryOrCreate"), ("file", "FileOrCreate"), ("untyped", "")):
        check(str(tmp_path / name), kind)
    assert (tmp_path / "a" / "b").is_dir()
    assert (tmp_path / "file").is_file()
    assert (tmp_path / "untyped").is_dir()


@pytest.mark.parametrize("kind", ["Directory", "File", "Socket", "CharDevice", "BlockDevice"])
def test_a_host_path_that_must_exist_is_refused_if_missing(tmp_path, kind):
    with pytest.raises(ConfigError, match=f"type check failed: {tmp_path}/no is not a"):
        check(str(tmp_path / "no"), kind)


def test_the_kind_must_be_right(tmp_path):
    (tmp_path / "file").touch()
    for kind in ("Directory", "DirectoryOrCreate"):
        with pytest.raises(ConfigError, match="is not a directory"):
            check(str(tmp_path / "file"), kind)
    with pytest.raises(ConfigError, match="is not a file"):
        check(str(tmp_path), "FileOrCreate")
    with pytest.raises(ConfigError, match="Palace is an invalid volume type"):
        check(str(tmp_path), "Palace")


def test_sockets_and_devices_are_known(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        check(str(tmp_path / "s"), "Socket")
    check("/dev/null", "CharDevice")


def test_a_directory_beneath_which_a_path_is_does_not_let_it_out_by_a_link(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "plugins").symlink_to("..")
    with pytest.raises(OSError, match="leads out"):
        check("plugins/made", "DirectoryOrCreate", beneath=tmp_path / "own")
    assert not (tmp_path / "made").exists()


def test_hidden_directories_are_found_where_they_are_now(tmp_path):
    (tmp_path / "state" / "clusters").mkdir(parents=True)
    hidden = HiddenDirectories([str(tmp_path / "state" / "clusters"), str(tmp_path / "none")])
    (tmp_path / "state").rename(tmp_path / "other")
    assert [path for path, _ in hidden.places()] == [str(tmp_path / "other" / "clusters")]
    with pytest.raises(PermissionError, match="is not shown to pods"):
        check(str(tmp_path / "other" / "clusters" / "made"), "", hidden=hidden)
    assert not (tmp_path / "other" / "clusters" / "made").exists()
