"""Directories whose files change all at once."""

import os

import pytest

from localkube.kubelet.volumes.projected import VolumeFile, write_atomically


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def visible(directory):
    return [name for name in names(directory) if not name.startswith("..")]


def test_every_name_is_a_link_through_one_pointer(tmp_path):
    write_atomically(tmp_path, {"a": VolumeFile(b"1"), "b/c": VolumeFile(b"2")})
    assert str((tmp_path / "a").readlink()) == "..data/a"
    assert str((tmp_path / "b").readlink()) == "..data/b"
    assert str((tmp_path / "..data").readlink()).startswith("..20")


def test_an_update_swaps_the_pointer_and_leaves_nothing_behind(tmp_path):
    write_atomically(tmp_path, {"a": VolumeFile(b"1"), "gone": VolumeFile(b"x")})
    before = str((tmp_path / "..data").readlink())
    assert write_atomically(tmp_path, {"a": VolumeFile(b"2"), "new": VolumeFile(b"y")})
    assert (tmp_path / "a").read_bytes() == b"2"
    assert visible(tmp_path) == ["a", "new"]
    assert not (tmp_path / before).exists()
    assert len(names(tmp_path)) == 4


@pytest.mark.parametrize(
    "files",
    [
        {"a": VolumeFile(b"2")},
        {"a": VolumeFile(b"1", 0o600)},
        {"a": VolumeFile(b"1"), "b": VolumeFile(b"")},
        {},
    ],
    ids=["bytes", "mode", "more", "fewer"],
)
def test_only_a_difference_is_written(tmp_path, files):
    same = {"a": VolumeFile(b"1")}
    write_atomically(tmp_path, same)
    before = str((tmp_path / "..data").readlink())
    assert not write_atomically(tmp_path, same)
    assert str((tmp_path / "..data").readlink()) == before
    assert write_atomically(tmp_path, files)


def test_a_write_that_was_cut_short_is_repaired(tmp_path):
    write_atomically(tmp_path, {"a": VolumeFile(b"1")})
    (tmp_path / "..2001_01_01_00_00_00.cut").mkdir()
    (tmp_path / "..data_tmp").symlink_to("..2001_01_01_00_00_00.cut")
    write_atomically(tmp_path, {"a": VolumeFile(b"2")})
    assert (tmp_path / "a").read_bytes() == b"2"
    assert len(names(tmp_path)) == 3


def test_a_reader_never_sees_a_mixture(tmp_path):
    write_atomically(tmp_path, {"a": VolumeFile(b"0"), "b": VolumeFile(b"0")})
    directory = os.open(tmp_path / "..data", os.O_RDONLY)
    write_atomically(tmp_path, {"a": VolumeFile(b"1"), "b": VolumeFile(b"1")})
    try:
        with pytest.raises(FileNotFoundError):
            os.open("a", os.O_RDONLY, dir_fd=directory)
    finally:
        os.close(directory)
    assert {(tmp_path / name).read_bytes() for name in "ab"} == {b"1"}
