"""Layers are unpacked as overlayfs wants them, for root and others; hostile ones change nothing outside."""

import json
import os
import shutil
import signal
import stat
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from ..unit.image_registry import serve
from ..unit.oci_images import command, entry, folder, image, images, layer, link, program
from . import restrictions

NOBODY = 65534
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service, effective
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture(scope="module")
def registry():
    program()
    with serve() as serving:
        yield serving


class Unpacked:
    """An image in a store, and the folders of its layers."""

    def __init__(self, store: Path, record: dict) -> None:
        self.store, self.record = store, record
        self.layers = [store / "layers" / name for name in record["layers"]]


@pytest.fixture
def pull(registry, tmp_path):
    def pulled(*layers: bytes, **options) -> Unpacked:
        reference = registry.add(f"{tmp_path.name.lower().replace('_', '')[:60]}/x:1", image(*layers))
        return Unpacked(tmp_path / "store", images(tmp_path / "store", "pull", reference, **options).image)

    return pulled


@pytest.fixture
def refused(registry, tmp_path):
    """Pull what must not be pulled; nothing may be left of it, or lie outside of the store."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("as it was")

    def pulled(*layers: bytes, reason: str, **options) -> str:
        reference = registry.add(f"{tmp_path.name.lower().replace('_', '')[:60]}/x:1", image(*layers))
        done = images(tmp_path / "store", "pull", reference, **options)
        assert done.reason == reason, done
        for name in ("layers", "diff-ids", "images", "names"):
            assert list((tmp_path / "store" / name).iterdir()) == []
        return done.message

    yield pulled
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "as it was")]


def is_whiteout(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def with_attributes(name: str, content: bytes = b"", **attributes: bytes) -> tuple:
    member = entry(name, content)
    member[0].pax_headers = {
        f"SCHILY.xattr.{key.replace('__', '.')}": value.decode("utf-8", "surrogateescape")
        for key, value in attributes.items()
    }
    return member


def as_nobody(tmp_path: Path, subordinate: str = "") -> list[str]:
    """The words before a command that make it nobody's, with these lines in /etc/subuid."""
    ids = tmp_path / "subordinate"
    ids.write_text(subordinate)
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    mounts = f"mount --bind {ids} /etc/subuid && mount --bind {ids} /etc/subgid && "
    become = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env HOME={tmp_path} "
    return ["unshare", "--mount", "sh", "-c", mounts + become + '"$@"', "sh"]


# What layers may have.


def test_modes_times_links_and_attributes_are_kept(pull):
    pulled_image = pull(
        layer(
            folder("bin", 0o555, mtime=1_600_000_000),
            entry("bin/setuid", b"x", mode=0o4755),
            entry("bin/setgid", b"x", mode=0o2755),
            folder("tmp", 0o1777),
            link("bin/hard", "bin/setuid", hard=True, mode=0o4755),
            link("absolute", "/bin/setuid"),
            entry("pipe", type=tarfile.FIFOTYPE),
            with_attributes("noted", user__note=b"text"),
        )
    )
    (root,) = pulled_image.layers
    assert stat.S_IMODE((root / "bin/setuid").stat().st_mode) == 0o4755
    assert stat.S_IMODE((root / "bin/setgid").stat().st_mode) == 0o2755
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((root / "bin").stat().st_mode) == 0o555
    assert (root / "bin").stat().st_mtime == 1_600_000_000
    assert (root / "bin/setuid").stat().st_mtime == 1_700_000_000
    assert (root / "bin/hard").samefile(root / "bin/setuid")
    assert (root / "absolute").readlink() == Path("/bin/setuid")
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert os.getxattr(root / "noted", "user.note") == b"text"


@root_only
def test_files_get_their_owners_and_capabilities_as_root(pull):
    (root,) = pull(
        layer(entry("owned", uid=33, gid=34), with_attributes("able", b"x", security__capability=CAPABILITY))
    ).layers
    assert ((root / "owned").stat().st_uid, (root / "owned").stat().st_gid) == (33, 34)
    assert os.getxattr(root / "able", "security.capability") == CAPABILITY


@root_only
def test_another_user_with_subordinate_ids_gives_files_their_owners(pull, tmp_path):
    if shutil.which("newuidmap") is None:
        pytest.skip("there is no newuidmap (Debian's package uidmap)")
    pulled_image = pull(
        layer(
            folder("root", 0o550),
            entry("root/file", b"x", mode=0o400, uid=0),
            entry("owned", uid=33, gid=34),
            folder("closed", 0, uid=1000, gid=1000),
            entry("closed/file", b"x", mode=0, uid=1000),
            with_attributes("able", b"x", security__capability=CAPABILITY),
        ),
        layer(entry("closed/.wh.file"), entry("last", uid=65534)),
        prefix=as_nobody(tmp_path, "nobody:300000:65536\n"),
    )
    first, second = pulled_image.layers
    assert (first / "root/file").stat().st_uid == NOBODY
    assert ((first / "owned").stat().st_uid, (first / "owned").stat().st_gid) == (300032, 300033)
    assert (second / "last").stat().st_uid == 365533
    assert is_whiteout(second / "closed/file")
    assert (second / "closed").stat().st_uid == 300999
    # Of version 3, with the namespace's root: in other namespaces it means nothing.
    assert os.getxattr(first / "able", "security.capability")[3] == 3
    done = images(
        pulled_image.store,
        "remove",
        pulled_image.record["id"],
        prefix=as_nobody(tmp_path, "nobody:300000:65536\n"),
    )
    assert done.status == 0, done
    assert list((pulled_image.store / "layers").iterdir()) == []


@root_only
def test_without_subordinate_ids_all_files_are_the_users(pull, tmp_path):
    prefix = as_nobody(tmp_path)
    pulled_image = pull(
        layer(
            folder("root", 0o550),
            entry("root/file", b"x", mode=0o400),
            entry("owned", uid=33, gid=34, mode=0o4755),
            folder("closed", 0, uid=1000),
            entry("closed/file", b"x", mode=0),
        ),
        layer(entry("root/.wh.file"), entry("closed/.wh..wh..opq")),
        prefix=prefix,
    )
    first, second = pulled_image.layers
    assert {path.lstat().st_uid for path in pulled_image.store.rglob("*")} == {NOBODY}
    assert stat.S_IMODE((first / "owned").stat().st_mode) == 0o4755
    assert stat.S_IMODE((first / "closed").stat().st_mode) == 0
    assert is_whiteout(second / "root/file") and is_opaque(second / "closed")
    assert images(pulled_image.store, "remove", pulled_image.record["id"], prefix=prefix).status == 0
    assert list((pulled_image.store / "layers").iterdir()) == []


def test_without_user_namespaces_images_are_pulled_all_the_same(pull):
    pulled_image = pull(
        layer(folder("bin"), entry("bin/a", b"x", uid=33), entry(".wh.b")),
        enter=restrictions.without_namespaces(),
    )
    assert (pulled_image.layers[0] / "bin/a").stat().st_uid == os.getuid()
    assert is_whiteout(pulled_image.layers[0] / "b")


def test_whiteouts_hide_what_is_below(pull):
    _, second = pull(
        layer(folder("a"), entry("a/one"), entry("a/two"), folder("b"), entry("b/three")),
        layer(entry("a/.wh.one"), folder("b"), entry("b/.wh..wh..opq"), entry("b/four"), entry(".wh.a2")),
    ).layers
    assert is_whiteout(second / "a/one") and is_whiteout(second / "a2")
    assert not (second / "a/two").exists()
    assert is_opaque(second / "b") and (second / "b/four").exists()
    assert not list(second.rglob(".wh.*"))


@pytest.mark.parametrize("whiteout_first", [True, False])
def test_a_folder_that_replaces_what_was_removed_is_opaque(pull, whiteout_first):
    members = [entry(".wh.a"), folder("a"), entry("a/new")]
    if not whiteout_first:
        members = [*members[1:], members[0]]
    _, second = pull(layer(folder("a"), entry("a/old")), layer(*members)).layers
    assert (second / "a/new").exists() and is_opaque(second / "a")


def test_a_file_is_not_hidden_by_its_own_layers_whiteout(pull):
    _, second = pull(layer(entry("a", b"old")), layer(entry("a", b"new"), entry(".wh.a"))).layers
    assert (second / "a").read_bytes() == b"new"


def test_folders_without_an_entry_are_what_they_are_below(pull):
    pulled_image = pull(
        layer(folder("tmp", 0o1777), folder("srv", 0o700, mtime=1_600_000_000)),
        layer(entry("other")),
        layer(entry("tmp/x"), entry("srv/x"), entry("new/x")),
    )
    top = pulled_image.layers[2]
    assert stat.S_IMODE((top / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((top / "srv").stat().st_mode) == 0o700
    assert stat.S_IMODE((top / "new").stat().st_mode) == 0o755


def test_the_kernel_shows_the_layers_merged(pull, tmp_path):
    pulled_image = pull(
        layer(folder("a"), entry("a/one", b"1"), folder("b"), entry("b/old"), entry("gone")),
        layer(entry("a/two", b"2"), entry(".wh.gone"), entry(".wh.b"), folder("b"), entry("b/new")),
    )
    mount = "mount -t overlay overlay -o userxattr,lowerdir=2:1 /mnt && find /mnt | sort"
    numbers = pulled_image.record["layers"]
    mount = mount.replace("2:1", ":".join(reversed(numbers)))
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        cwd=pulled_image.store / "layers",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no overlayfs in user namespaces here: {done.stderr}")
    shown = done.stdout.split()
    assert shown == ["/mnt", "/mnt/a", "/mnt/a/one", "/mnt/a/two", "/mnt/b", "/mnt/b/new"]
    merged = tmp_path / "merged"
    merged.mkdir()
    assert images(pulled_image.store, "checkout", pulled_image.record["id"], str(merged)).status == 0
    assert [f"/mnt/{path.relative_to(merged)}" for path in sorted(merged.rglob("*"))] == shown[1:]


def test_devices_are_left_out_and_counted(pull):
    members = [
        entry("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("dev/sda", type=tarfile.BLKTYPE, devmajor=8),
        entry("hidden", type=tarfile.CHRTYPE),  # 0:0, as overlayfs writes a whiteout
        entry("file"),
    ]
    pulled_image = pull(layer(*members))
    assert pulled_image.record["left_out"] == 3
    assert sorted(path.name for path in pulled_image.layers[0].iterdir()) == ["file"]


# Hostile layers.


def test_names_that_climb_out_stay_inside(pull, tmp_path):
    pulled_image = pull(
        layer(
            entry("../../../../outside1", b"x"),
            entry("/absolute", b"x"),
            folder("a"),
            entry("a/../../../outside2", b"x"),
            link("hard", "../../../../etc/hostname-that-is-not-there", hard=False),
        )
    )
    names = {str(path.relative_to(pulled_image.layers[0])) for path in pulled_image.layers[0].rglob("*")}
    assert names == {"outside1", "absolute", "a", "outside2", "hard"}
    assert not list(tmp_path.glob("outside*")) and not list(tmp_path.parent.glob("outside*"))


@pytest.mark.parametrize("target", ["{outside}", "../../../outside", "/"])
def test_nothing_is_written_through_a_link(pull, tmp_path, target):
    outside = tmp_path / "outside"
    outside.mkdir()
    to = target.format(outside=outside)
    pulled_image = pull(
        layer(
            link("way", to),
            entry("way/written", b"x"),
            folder("way/folder"),
            entry("way/.wh.file"),
            entry("way/.wh..wh..opq"),
        )
    )
    assert list(outside.iterdir()) == []
    assert not is_opaque(outside)
    assert list(pulled_image.layers[0].rglob("written")), "it is below the layer's own folder"


def test_a_file_that_replaces_a_link_does_not_follow_it(pull, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    victim.chmod(0o600)
    pulled_image = pull(layer(link("a", str(victim)), entry("a", b"x", mode=0o777)))
    assert victim.read_text() == "as it was"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600
    assert (pulled_image.layers[0] / "a").read_bytes() == b"x"


@pytest.mark.parametrize("target", ["{outside}/file", "../../../outside/file", "/etc/passwd"])
def test_hard_links_reach_only_the_layers_own_files(refused, tmp_path, target):
    to = target.format(outside=tmp_path / "outside")
    message = refused(layer(link("a", to, hard=True)), reason="store")
    assert "no such file" in message


def test_a_hard_link_through_a_link_stays_inside(refused, tmp_path):
    refused(layer(link("way", str(tmp_path / "outside")), link("a", "way/file", hard=True)), reason="store")


@pytest.mark.parametrize("name", [".wh...", ".wh.", "a/.wh..", "../.wh...", "a/.wh...", ".wh./"])
def test_whiteouts_of_parents_hide_nothing(registry, tmp_path, name):
    reference = registry.add("whiteouts/x:1", image(layer(folder("a"), entry("a/b")), layer(entry(name))))
    done = images(tmp_path / "store", "pull", reference)
    for path in (tmp_path / "store" / "layers").iterdir():
        assert not is_whiteout(path) and not is_opaque(path)
    assert done.status == 1
    assert images(tmp_path / "store", "list").status == 0


def test_a_layer_gives_overlayfs_no_orders(pull):
    (root,) = pull(
        layer(
            with_attributes(
                "a", b"x", user__overlay__redirect=b"/etc", user__overlay__metacopy=b"", user__fine=b"1"
            ),
            with_attributes("b", b"x", trusted__overlay__opaque=b"y", security__selinux=b"x"),
        )
    ).layers
    assert os.listxattr(root / "a") == ["user.fine"]
    assert os.listxattr(root / "b") == []


def test_a_folder_that_becomes_a_link_takes_no_whiteouts_with_it(refused, tmp_path):
    outside = tmp_path / "outside"
    refused(
        layer(folder("a"), entry("a/.wh.file"), entry("a/.wh..wh..opq"), link("a", str(outside))),
        reason="store",
    )
    assert not is_opaque(outside)


def test_a_layer_that_is_no_archive_is_refused(refused):
    assert "failed to extract layer" in refused(b"this is no archive" * 100, reason="store")


def test_a_cut_layer_is_refused(refused):
    refused(layer(entry("a", b"x" * 5000))[:3000], reason="store")


@root_only
@pytest.mark.parametrize("ids", ["", "nobody:300000:65536\n"])
def test_an_interrupted_pull_of_another_user_leaves_no_half_layer(registry, tmp_path, ids):
    pulled_image = image(
        layer(*(entry(f"{n}", b"x" * 1000, uid=7) for n in range(25_000))),
        layer(*(entry(f"{n}", b"x" * 1000) for n in range(25_000))),
        compress="",
    )
    store = tmp_path / "store"
    pulling = subprocess.Popen(
        [*as_nobody(tmp_path, ids), *command(store, "pull", registry.add("interrupted/x:1", pulled_image))],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list(store.glob("layers/*.partial/100"))) < 2:
        assert time.monotonic() < deadline and pulling.poll() is None
        time.sleep(0.01)
    os.killpg(pulling.pid, signal.SIGINT)  # as a terminal's Ctrl-C: everybody gets it
    out, _ = pulling.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["reason"] == "interrupted"
    assert list((store / "layers").iterdir()) == []


# A full disk.


@pytest.fixture
def small_disk(tmp_path):
    """Words before a command that give the store a disk of 64 MB of its own."""
    store = tmp_path / "store"
    store.mkdir()
    mount = f"mount -t tmpfs -o size=64m,nr_inodes=5000 none {store} && "
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount + "exec true"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("no tmpfs in a user namespace here")
    after = f'"$@"; code=$?; find {store}/layers {store}/images -mindepth 1 >&2; exit $code'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount + after, "sh"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("large", "may still be written"),
        ("bomb", "may still be written"),
        ("sparse", "may still be written"),
        ("files", "no space left"),
    ],
)
def test_a_layer_that_does_not_fit_is_an_error_and_leaves_nothing(
    registry, tmp_path, small_disk, kind, message
):
    if kind == "large":
        pulled_image = image(layer(entry("a", os.urandom(80 << 20))), compress="")
    elif kind == "bomb":
        pulled_image = image(layer(*(entry(f"{n}", bytes(1 << 20)) for n in range(200))))
    elif kind == "sparse":
        pulled_image = image(sparse_archive(tmp_path))
    else:
        pulled_image = image(layer(*(entry(f"{n}") for n in range(6000))))
    done = images(tmp_path / "store", "pull", registry.add(f"full/{kind}:1", pulled_image), prefix=small_disk)
    assert done.reason == "disk", done
    assert message in done.message
    assert done.errors == "", "nothing is left of the layer"


def sparse_archive(tmp_path: Path) -> bytes:
    """A kilobyte that says it is a file of a terabyte, nearly all of it a hole."""
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    done = subprocess.run(
        ["tar", "--sparse", "--format=pax", "-cf", "-", "-C", tmp_path, "hole"],
        stdout=subprocess.PIPE,
        check=True,
    )
    assert len(done.stdout) < 1 << 16
    return done.stdout
