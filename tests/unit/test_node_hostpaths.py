"""The types of hostPath volumes."""

import socket

import pytest

from localkube.kubelet.volumes.host_path import HostPathError, checked, places_of


def test_what_may_be_created_is(tmp_path):
    assert checked(str(tmp_path / "a" / "b"), "DirectoryOrCreate").is_dir()
    assert checked(str(tmp_path / "file"), "FileOrCreate").is_file()
    assert checked(str(tmp_path / "untyped"), "").is_dir()


@pytest.mark.parametrize("kind", ["Directory", "File", "Socket", "CharDevice", "BlockDevice"])
def test_what_must_exist_must(tmp_path, kind):
    with pytest.raises(HostPathError, match=f"type check failed: {tmp_path}/no is not a"):
        checked(str(tmp_path / "no"), kind)


def test_the_kind_must_be_right(tmp_path):
    (tmp_path / "file").touch()
    for kind in ("Directory", "DirectoryOrCreate"):
        with pytest.raises(HostPathError, match="is not a directory"):
            checked(str(tmp_path / "file"), kind)
    with pytest.raises(HostPathError, match="is not a file"):
        checked(str(tmp_path), "FileOrCreate")
    with pytest.raises(HostPathError, match="Palace is an invalid volume type"):
        checked(str(tmp_path), "Palace")


def test_sockets_and_devices_are_known(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert checked(str(tmp_path / "s"), "Socket").is_socket()
    assert checked("/dev/null", "CharDevice").is_char_device()


def test_a_directory_is_found_wherever_its_file_system_is_mounted():
    mounts = [
        "1 0 8:1 / / rw - ext4 a rw",
        "2 1 8:1 /home /mnt rw - ext4 a rw",
        "3 1 8:2 / /other rw - ext4 b rw",
        "4 1 8:1 /var /var rw - ext4 a rw",
    ]
    assert places_of("8:1", "/home/ada", "\n".join(mounts)) == ["/home/ada", "/mnt/ada"]
    assert places_of("8:3", "/home/ada", "\n".join(mounts)) == []
