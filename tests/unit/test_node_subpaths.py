"""Paths inside a volume, and those that try to leave it."""

import os
import stat

import pytest

from localkube.kubelet.volumes.host_path import SubPathError, resolve_subpath


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "secret").write_text("outside")
    volume = tmp_path / "volume"
    (volume / "data").mkdir(parents=True)
    (volume / "data" / "file").write_text("inside")
    return volume


def test_what_is_there_is_found(volume):
    assert resolve_subpath(volume, "data/file", create=False) == volume / "data" / "file"
    assert resolve_subpath(volume, "./data//", create=False) == volume / "data"


def test_what_is_missing_is_made_as_directories_or_refused(volume):
    with pytest.raises(SubPathError, match="No such file"):
        resolve_subpath(volume, "runs/7", create=False)
    assert resolve_subpath(volume, "runs/7", create=True) == volume / "runs" / "7"
    assert (volume / "runs" / "7").is_dir()


def test_what_is_made_is_open_to_all_users_of_the_pod(volume):
    previous = os.umask(0o077)
    try:
        made = resolve_subpath(volume, "runs/7", create=True)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(made.stat().st_mode) == stat.S_IMODE(made.parent.stat().st_mode) == 0o755


def test_links_that_stay_inside_are_followed(volume):
    (volume / "..data").symlink_to("data")
    (volume / "name").symlink_to("..data/file")
    (volume / "data" / "back").symlink_to("../data")
    assert resolve_subpath(volume, "name", create=False) == volume / "data" / "file"
    assert resolve_subpath(volume, "data/back/file", create=False) == volume / "data" / "file"


@pytest.mark.parametrize("path", ["../secret", "/etc", "data/../../secret", ".."])
def test_a_path_that_climbs_is_refused(volume, path):
    with pytest.raises(SubPathError, match="must be relative"):
        resolve_subpath(volume, path, create=True)


@pytest.mark.parametrize("target", ["../secret", "/etc/hostname", "data/../../secret", ".."])
def test_a_link_that_leads_out_is_refused(volume, target):
    (volume / "trap").symlink_to(target)
    with pytest.raises(SubPathError, match="leads out of the volume"):
        resolve_subpath(volume, "trap", create=True)
    with pytest.raises(SubPathError, match="leads out of the volume"):
        resolve_subpath(volume, "trap/deeper", create=True)


def test_a_link_to_itself_ends(volume):
    (volume / "loop").symlink_to("loop")
    with pytest.raises(SubPathError):
        resolve_subpath(volume, "loop", create=True)


def test_a_dangling_link_is_not_created_outside(volume, tmp_path):
    (volume / "dangling").symlink_to("../made")
    with pytest.raises(SubPathError):
        resolve_subpath(volume, "dangling", create=True)
    assert not (tmp_path / "made").exists()


def test_a_file_is_no_directory(volume):
    with pytest.raises(SubPathError, match="Not a directory"):
        resolve_subpath(volume, "data/file/deeper", create=True)


def test_a_volume_that_is_gone_is_said(tmp_path):
    with pytest.raises(SubPathError, match="No such file"):
        resolve_subpath(tmp_path / "gone", "a", create=True)
