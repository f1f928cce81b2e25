"""A container exchanges entries of its volume while another one is being mounted, at every step of that.

Published cases: CVE-2017-1002101, 2021-25741 (subPath), 2021-30465, 2025-31133, 2025-52565 (mount points).
"""

import ctypes
import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localkube.runtime import path_resolution, rootfs, syscalls
from localkube.runtime.container_spec import MountSpec
from localkube.runtime.mounts import READ_ONLY, ContainerRoot, attach, clone, closing, open_own
from localkube.runtime.path_resolution import opened

from ..rows import slow
from ..security.users import USERS, folder_of
from .network_namespace import in_network_namespace

AT_FDCWD, RENAME_EXCHANGE = -100, 2
LIBC = syscalls._libc


@pytest.fixture(params=USERS)
def home(request):
    """Yield a user's directory with a volume, another container's root, and what neither may show."""
    with folder_of(request.param) as path:
        _fill(path)
        for entry in path.rglob("*"):
            os.chown(entry, request.param, request.param, follow_symlinks=False)
        yield path


def _fill(home):
    (home / "volume" / "sub" / "deep").mkdir(parents=True)
    for name in ("sub/file", "sub/deep/file", "file"):
        (home / "volume" / name).write_text("inside")
    (home / "outside" / "deep").mkdir(parents=True)
    for name in ("file", "deep/file", "secret"):
        (home / "outside" / name).write_text("outside")
    # To a directory, to a file, and by steps up.
    (home / "links").mkdir()
    (home / "links" / "absolute").symlink_to(home / "outside")
    (home / "links" / "relative").symlink_to("../outside")
    (home / "links" / "far").symlink_to("../" * 20 + str(home / "outside").lstrip("/"))
    (home / "links" / "magic").symlink_to("/proc/self/cwd")
    (home / "root").mkdir()


def exchange(first: Path, second: Path) -> None:
    """Swap two entries in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    assert libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0


class Steps:
    """Counts the runtime's system calls, and does something before one of them."""

    def __init__(self, at, act):
        self.count, self._at, self._act = 0, at, act

    def __call__(self, frame, event, function):
        by_python = event == "c_call" and function.__module__ in ("posix", "_io")
        if by_python or event == "call" and frame.f_code is call.__code__:
            if self.count == self._at:
                self._act()
            self.count += 1

    def run(self, work):
        syscalls._libc = SeenLibrary()
        sys.setprofile(self)
        try:
            return work()
        finally:
            sys.setprofile(None)
            syscalls._libc = LIBC


class SeenLibrary:
    """The C library, whose calls are also calls in Python, which a profiler sees."""

    def __getattr__(self, name):
        return partial(call, getattr(LIBC, name))


def call(function, *arguments):
    return function(*arguments)


def at_every_step(home, work, act, look, *, hidden=None):
    """Do the work on a root once for each of its steps, with ``act`` before that one, and look at it.

    Args:
        hidden: A directory that the root hides.
    """
    clean = home / "clean"
    shutil.copytree(home / "volume", clean, symlinks=True)
    total, step, ended = 1, 0, set()
    while step < total:
        steps, root = Steps(step, act), root_of(home, hidden)
        try:
            steps.run(lambda root=root: work(root))
            ended.add("mounted")
        except OSError:
            ended.add("refused")
        total = max(total, steps.count)
        look()
        os.chdir("/")
        while os.path.ismount(home / "root"):
            syscalls.unmount(str(home / "root"))
        shutil.rmtree(home / "volume")
        shutil.rmtree(home / "other", ignore_errors=True)
        shutil.copytree(clean, home / "volume", symlinks=True)
        step += 1
    assert total > 20
    return ended


def root_of(home, hidden=None):
    """Make a container's root, as a mount of its own."""
    places = ()
    if hidden:
        with opened(hidden) as place:
            places = ((str(hidden), path_resolution.identity(place)),)
    with closing(open_own(str(home / "root"))) as place:
        tree = syscalls.new_mount("tmpfs", ("mode=755",), 0)
        attach(tree, place)
    return ContainerRoot(open_own(str(home / "root")), hidden=places)


def mounted_files(home):
    """Read all files that the container's root shows."""
    return {path.read_text() for path in (home / "root").rglob("file") if path.is_file()}


def touched(home):
    """List what is in the place outside, and what is mounted there."""
    names = sorted(str(path.relative_to(home / "outside")) for path in (home / "outside").rglob("*"))
    outside = str(home / "outside")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return names, [line for line in mounts if line.split()[4].startswith(outside)]


UNTOUCHED = (["deep", "deep/file", "file", "secret"], [])
LINKS = ["absolute", "magic", *slow("relative", "far")]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("subpath", ["sub", "sub/deep", "sub/file"])
@in_network_namespace
async def test_a_sub_path_whose_parts_are_exchanged_shows_nothing_of_the_machine(home, subpath, link):
    entry = MountSpec("/data", source=str(home / "volume"), subpaths=(subpath,))

    def look():
        assert "outside" not in mounted_files(home)
        assert touched(home) == UNTOUCHED

    def work(root):
        rootfs._mount_entry(entry, root)

    ended = at_every_step(home, work, _exchanging(home, "sub", link), look)
    assert ended == {"mounted", "refused"}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("target", ["/volume/sub/deep", "/volume/sub/new/file", "/volume/sub/file"])
@in_network_namespace
async def test_a_mount_point_whose_parts_are_exchanged_is_in_the_volume_or_nowhere(home, target, link):
    (home / "own").mkdir()
    (home / "own" / "file").write_text("own")
    source = home / "own" / "file" if target.endswith("file") else home / "own"

    def work(root):
        rootfs._mount_entry(MountSpec("/volume", source=str(home / "volume")), root)
        rootfs._mount_entry(MountSpec(target, source=str(source)), root)
        root.close(readonly=False)

    def look():
        assert touched(home) == UNTOUCHED
        assert not [path for path in (home / "own").rglob("*") if path.name != "file"]

    at_every_step(home, work, _exchanging(home, "sub", link), look)


@pytest.mark.parametrize("link", LINKS)
@in_network_namespace
async def test_a_shadowed_directory_whose_entries_are_exchanged_shows_none_of_the_machines(home, link):
    """The volume is read-only: the directory with the missing mount point is covered, entry by entry."""

    def work(root):
        readonly = MountSpec("/volume", source=str(home / "volume"), options=("ro",))
        rootfs._mount_entry(readonly, root)
        rootfs._mount_entry(MountSpec("/volume/new/mine", "tmpfs"), root)
        root.close(readonly=False)

    def look():
        assert "outside" not in mounted_files(home)
        assert touched(home) == UNTOUCHED
        shown = str(home / "root" / "volume")
        flags = {
            fields[4]: set(fields[5].split(","))
            for fields in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
            if fields[4].startswith(shown) and not fields[4].endswith("mine")
        }
        assert all({"ro", "nosuid", "nodev"} <= mount_flags for mount_flags in flags.values()), flags

    at_every_step(home, work, _exchanging(home, "sub", link), look)


def _exchanging(home, name, link):
    return lambda: exchange(home / "volume" / name, _fresh(home, link))


def _fresh(home, link):
    """Return a new link: a run may leave the last one in the volume."""
    path = home / "volume" / "..link"
    path.symlink_to((home / "links" / link).readlink())
    return path


@pytest.mark.parametrize(
    "subpath", ["..", "../..", "file/..", "etc/../../other", "up", "up/other", "etc/link/file"]
)
@pytest.mark.parametrize("lowerdir", ["lower", "upper:lower"])
@in_network_namespace
async def test_an_images_sub_path_leads_to_nothing_but_files_of_the_image(home, subpath, lowerdir):
    store = home / "store"
    for name in ("lower/etc", "upper", "other"):
        (store / name).mkdir(parents=True)
    (store / "lower" / "up").symlink_to("..")
    (store / "lower" / "etc" / "link").symlink_to(home / "outside")
    root = root_of(home)
    (home / "root" / "proc").mkdir()
    entry = MountSpec("/i", "overlay", str(store), ("ro", f"lowerdir={lowerdir}"), (subpath,))
    with pytest.raises(OSError, match="leads out|symlink|No such file|Not a directory"):
        rootfs._mount_entry(entry, root)
    rootfs._mount_entry(replace(entry, subpaths=("etc",)), root)
    assert [path.name for path in (home / "root" / "i").iterdir()] == ["link"]


@in_network_namespace
async def test_a_parent_of_hidden_directories_cannot_be_renamed_in_the_mount_of_one_above(home):
    state = home / "volume" / "sub" / "deep"
    with opened(str(state)) as hidden:
        inode = path_resolution.identity(hidden)
    root = ContainerRoot(open_own(str(home / "root")), hidden=((str(state), inode),))
    rootfs._mount_entry(MountSpec("/all", source=str(home), options=("masked",)), root)
    shown = home / "root" / "all"
    assert list((shown / "volume/sub/deep").iterdir()) == []
    for name in ("volume", "volume/sub", "volume/sub/deep"):
        with pytest.raises(OSError, match="busy"):
            (shown / name).rename((shown / name).with_name("other"))
    (shown / "written").touch()
    assert (home / "written").exists()


@in_network_namespace
async def test_hidden_directories_stay_covered_while_a_parent_is_renamed(home):
    def work(root):
        try:
            rootfs._mount_entry(MountSpec("/all", source=str(home), options=("masked",)), root)
        except OSError:
            syscalls.unmount(str(home / "root"))  # it goes with the process that has failed
            raise

    def rename():
        (home / "volume").rename(home / "other")
        (home / "volume" / "sub").mkdir(parents=True)

    def look():
        for name in ("volume/sub", "other/sub"):
            place = home / "root" / "all" / name
            assert not (place / "file").exists(), name

    assert at_every_step(home, work, rename, look, hidden=home / "volume" / "sub") == {"mounted", "refused"}


@in_network_namespace
async def test_nothing_is_mounted_on_the_root_itself(home):
    (home / "root" / "link").symlink_to("..")
    for target in ("/", "/..", "/link", "/link/../."):
        root = ContainerRoot(open_own(str(home / "root")))
        with pytest.raises(OSError, match="on the root of a container"):
            rootfs._mount_entry(MountSpec(target, source=str(home / "volume")), root)


@in_network_namespace
async def test_a_mount_has_its_flags_before_it_is_attached(home):
    (home / "target").mkdir()
    attached = []

    def trace(frame, event, argument):
        if frame.f_code.co_name == "move_mount" and event == "call":
            tree = frame.f_locals["tree"]
            attached.append(os.fstatvfs(tree).f_flag & READ_ONLY)

    with closing(open_own(str(home / "target"))) as target:
        sys.settrace(trace)
        attach(clone(str(home / "volume")), target, (READ_ONLY, True))
        sys.settrace(None)
    assert attached == [READ_ONLY]
