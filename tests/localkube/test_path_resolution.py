"""Paths that a pod has written, resolved by the kernel and by the walk."""

import errno
import os
import stat
from pathlib import Path

import pytest

from localkube.kubelet.volumes.host_path import maker
from localkube.runtime import syscalls
from localkube.runtime.path_resolution import BENEATH, EXACT, Resolution, identity, location, opened


@pytest.fixture(params=["openat2", "the walk"], autouse=True)
def kernel(request, monkeypatch):
    """Resolve by the kernel, and as before Linux 5.6."""
    if request.param == "the walk":

        def missing(*arguments):
            raise OSError(errno.ENOSYS, "no such call")

        monkeypatch.setattr(syscalls, "openat2", missing)


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "secret").write_text("outside")
    volume = tmp_path / "volume"
    (volume / "data").mkdir(parents=True)
    (volume / "data" / "file").write_text("inside")
    return volume


def resolve(volume, path, rules=BENEATH):
    with opened(volume) as root:
        place = rules.open(root, path)
    try:
        return Path(location(place))
    finally:
        os.close(place)


MAKES = Resolution(make=maker())


def test_an_existing_path_is_resolved(volume):
    assert resolve(volume, "data/file") == volume / "data" / "file"
    assert resolve(volume, "./data//") == volume / "data"
    assert resolve(volume, "") == volume


def test_missing_directories_are_refused_or_created_for_all_users(volume):
    with pytest.raises(FileNotFoundError):
        resolve(volume, "runs/7")
    previous = os.umask(0o077)
    try:
        assert resolve(volume, "runs/7", MAKES) == volume / "runs" / "7"
    finally:
        os.umask(previous)
    for folder in (volume / "runs", volume / "runs" / "7"):
        assert folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_links_that_stay_inside_are_followed(volume):
    (volume / "..data").symlink_to("data")
    (volume / "name").symlink_to("..data/file")
    (volume / "data" / "back").symlink_to("../data")
    assert resolve(volume, "name") == volume / "data" / "file"
    assert resolve(volume, "data/back/file") == volume / "data" / "file"


@pytest.mark.parametrize("rules", [BENEATH, EXACT, MAKES])
@pytest.mark.parametrize("path", ["../secret", "data/../../secret", "..", "data/../../volume/data"])
def test_a_path_that_climbs_is_refused(volume, path, rules):
    with pytest.raises(OSError, match="leads out of its directory") as caught:
        resolve(volume, path, rules)
    assert caught.value.errno == errno.EXDEV


@pytest.mark.parametrize(
    "target", ["../secret", "/etc/hostname", "data/../../secret", "..", "/proc/self/root"]
)
@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_link_that_leads_out_is_refused(volume, target, below):
    (volume / "trap").symlink_to(target)
    for rules in (BENEATH, MAKES):
        with pytest.raises(OSError, match="leads out of its directory"):
            resolve(volume, f"trap{below}", rules)
    with pytest.raises(OSError, match="symlink") as caught:
        resolve(volume, f"trap{below}", EXACT)
    assert caught.value.errno == errno.ELOOP


def test_in_a_root_links_and_steps_up_stay_in_it(volume):
    rules = Resolution(in_root=True)
    (volume / "absolute").symlink_to("/data")
    (volume / "above").symlink_to("../../../data")
    for path in ("absolute/file", "above/file", "../../data/file", "/data/../data/file"):
        assert resolve(volume, path, rules) == volume / "data" / "file"


def test_a_magic_link_is_a_name_and_no_way_to_what_a_process_has_open(volume):
    """The kernel refuses it; the walk would take its text, in which a directory that is gone is no path."""
    (volume / "gone").mkdir()
    with opened(volume / "gone") as directory:
        (volume / "gone").rmdir()
        for path in (f"/proc/self/fd/{directory}", f"/proc/thread-self/fd/{directory}"):
            assert Path(path).is_dir()
            with pytest.raises(OSError, match="symlink|No such file"), opened(path):
                raise AssertionError(path)


def test_nothing_is_made_where_links_go_in_circles_or_dangle_or_below_a_file(volume, tmp_path):
    (volume / "loop").symlink_to("loop")
    (volume / "dangling").symlink_to("../made")
    for path, words in (("loop", "symlink"), ("dangling", "leads out"), ("data/file/deeper", "Not a direct")):
        with pytest.raises(OSError, match=words):
            resolve(volume, path, MAKES)
    assert not (tmp_path / "made").exists()


def test_another_mount_is_not_entered_where_none_may_be():
    with pytest.raises(OSError, match="leads out"):
        resolve("/", "proc/sys", Resolution(mounts=False))


def test_a_hidden_directory_is_known_by_what_it_is_and_not_by_its_name(volume, tmp_path):
    with opened(volume / "data") as data:
        hidden = frozenset([identity(data)])
    volume.rename(tmp_path / "renamed")
    (tmp_path / "link").symlink_to("renamed/data")
    for path in ("renamed/data", "renamed/data/file", "renamed/data/made", "link/file"):
        with pytest.raises(PermissionError, match="belongs to the local cluster itself"):
            resolve(tmp_path, path, Resolution(hidden=hidden, make=maker()))
    assert not (tmp_path / "renamed/data/made").exists()


@pytest.mark.parametrize("rules", [BENEATH, Resolution(hidden=frozenset({(0, 0)}))])
def test_a_path_is_refused_for_its_nul_and_not_cut_there(volume, rules):
    with pytest.raises(OSError, match="Invalid argument") as caught:
        resolve(volume, "data\0/../..", rules)
    assert caught.value.errno == errno.EINVAL
