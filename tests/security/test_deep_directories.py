"""What pods leave on the disk is removed and measured, however deep, closed or treacherous it is."""

import errno
import os
import subprocess
from collections import deque

import pytest

from localkube.kubelet.volumes.persistent_volume import set_group
from localkube.runtime.trees import disk_usage, remove_tree

from .users import USERS, as_user, folder_of

DEPTH = 1200
NAME = "d" * 40  # so deep, its path is longer than a system call takes


def dig(top, *, depth=DEPTH, name=NAME):
    """Make directories in each other, with a file in the last one."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with os.fdopen(os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here), "wb") as file:
        file.write(b"x" * 2**20)
    os.close(here)


def test_a_deep_directory_is_given_to_a_group_with_all_that_is_in_it(place, user):
    as_user(user, lambda: dig(place, depth=5000, name="d"))
    as_user(user, lambda: (place / "d" / "link").symlink_to("/etc/passwd"))
    as_user(user, lambda: deque(set_group(place, user), maxlen=0))
    for path in (place, place / "d" / "d" / "d"):
        assert (path.stat().st_gid, path.stat().st_mode & 0o2070) == (user, 0o2070)


@pytest.fixture(params=USERS)
def user(request):
    return request.param


@pytest.fixture
def place(user):
    with folder_of(user) as path:
        yield path
        subprocess.run(["rm", "-rf", path], check=True)


def test_a_directory_of_1200_levels_is_removed(user, place):
    def act():
        (place / "tree").mkdir()
        dig(place / "tree")
        remove_tree(place / "tree")
        assert list(place.iterdir()) == []
        remove_tree(place / "tree")  # safe to repeat

    as_user(user, act)


def test_the_last_file_of_1200_levels_is_measured(user, place):
    def act():
        dig(place)
        assert disk_usage(place) >= 2**20
        assert disk_usage(place / "is-not-there") == 0

    as_user(user, act)


def test_closed_directories_are_removed(user, place):
    def act():
        for mode in (0o000, 0o100, 0o400, 0o500):
            (place / "tree" / f"{mode:o}" / "below").mkdir(parents=True)
            (place / "tree" / f"{mode:o}" / "file").write_text("kept from you")
            (place / "tree" / f"{mode:o}").chmod(mode)
        assert disk_usage(place) >= 4 * len("kept from you")
        remove_tree(place / "tree")
        assert list(place.iterdir()) == []

    as_user(user, act)


def test_no_symlink_is_followed(user, place):
    def act():
        (place / "other").mkdir()
        (place / "other" / "kept").write_text("kept")
        (place / "tree" / "sub").mkdir(parents=True)
        (place / "tree" / "sub" / "link").symlink_to(place / "other")
        (place / "tree" / "up").symlink_to("..")
        remove_tree(place / "tree")
        assert (place / "other" / "kept").read_text() == "kept"
        (place / "tree").symlink_to(place / "other")
        with pytest.raises(OSError, match="directory|symbolic"):
            remove_tree(place / "tree")
        assert (place / "other" / "kept").read_text() == "kept"

    as_user(user, act)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave something that nobody may remove")
def test_it_goes_on_after_what_cannot_be_removed_and_says_what_that_is():
    with folder_of(USERS[1].values[0]) as place:
        for name in ("a", "b", "c"):
            (place / "tree" / name).mkdir(parents=True)
            (place / "tree" / name / "file").write_text("text")
        for path in (place / "tree", place / "tree" / "a", place / "tree" / "c"):
            os.chown(path, *(USERS[1].values[0],) * 2)

        def act():
            with pytest.raises(OSError) as caught:
                remove_tree(place / "tree")
            assert caught.value.errno == errno.EACCES
            assert caught.value.filename == str(place / "tree" / "b" / "file")
            assert [path.name for path in (place / "tree").iterdir()] == ["b"]

        as_user(USERS[1].values[0], act)


def test_a_directory_that_is_moved_meanwhile_does_not_lead_out(tmp_path, monkeypatch):
    (tmp_path / "other" / "kept").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "below").mkdir(parents=True)
    rmdir = os.rmdir

    def moved(name, **options):
        rmdir(name, **options)
        if name == "below":
            (tmp_path / "tree" / "sub").rename(tmp_path / "other" / "sub")

    monkeypatch.setattr(os, "rmdir", moved)
    with pytest.raises(OSError, match="moved"):
        remove_tree(tmp_path / "tree")
    assert (tmp_path / "other" / "kept").is_dir()
