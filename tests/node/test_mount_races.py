"""A container exchanges directories of its volume for symlinks while another one is being mounted."""

import ctypes
import errno
import os
import signal
from pathlib import Path

import pytest

from localkube.kubelet.volumes.host_path import resolve_subpath
from localkube.runtime.container_spec import MountSpec
from localkube.runtime.rootfs import _mount_entry, _Root, mount_point

from .network_namespace import in_network_namespace

ROUNDS = 3000
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@pytest.fixture
def volume(tmp_path):
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub" / "file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("outside")
    (tmp_path / "root").mkdir()
    return volume


def entry(source, *, target="/data"):
    return MountSpec(target, source=str(source), options=("nosymlinks",))


@in_network_namespace
async def test_a_sub_path_is_mounted_as_it_was_checked(volume):
    _mount_entry(entry(resolve_subpath(volume, "sub", create=False)), _Root(str(volume.parent / "root")))
    assert (volume.parent / "root" / "data" / "file").read_text() == "inside"


@in_network_namespace
async def test_a_sub_path_that_has_become_a_link_since_it_was_checked_is_refused(volume):
    checked = resolve_subpath(volume, "sub/file", create=False)
    (volume / "sub").rename(volume / "was")
    (volume / "sub").symlink_to("../outside")
    (volume.parent / "outside" / "file").write_text("outside")
    with pytest.raises(OSError, match="become a symlink") as caught:
        _mount_entry(entry(checked), _Root(str(volume.parent / "root")))
    assert caught.value.errno == errno.ELOOP
    assert not (volume.parent / "root" / "data").exists()


def test_nothing_is_made_outside_while_directories_and_links_change_places(volume):
    """A mount point that is missing is made in the volume: there, or nowhere."""
    outside = volume.parent / "outside"
    (volume / "link").symlink_to(outside)
    child = os.fork()
    if child == 0:
        exchange(volume)
    try:
        for number in range(ROUNDS):
            try:
                mount_point(str(volume), f"/sub/made-{number}", is_file=number % 2 == 0)
            except OSError:
                continue
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert [path.name for path in outside.iterdir()] == ["secret"]


def exchange(volume: Path) -> None:
    """Swap a directory and a link for ever, each swap in one step."""
    libc = ctypes.CDLL(None)
    names = [os.fsencode(volume / name) for name in ("sub", "link")]
    while True:
        libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
