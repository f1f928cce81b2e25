"""Bundles: what goes in comes out, and what is cut, damaged, too large or for others changes nothing."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from localkube.bundles import manifest, pack, unpack, wheels
from localkube.controlplane import binaries, build, image_store
from localkube.controlplane.recipes import RECIPES
from localkube.errors import LocalClusterError
from localkube.kubelet.images import image_programs, store
from localkube.runtime import preload

from ..unit import image_registry, oci_images

TINY = "tiny-1.0-py3-none-any.whl"


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Return a function that makes ``one`` or ``other`` the cache; ``one`` has programs."""

    def choose(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return tmp_path / name / "trainyard"

    fill(tmp_path / "one", monkeypatch)
    return choose


def fill(cache, monkeypatch):
    """Have a cache in use that has programs."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    program(binaries._built() / binaries.LINKED)
    program(RECIPES["jobset"].path)
    program(cache / "busybox")
    monkeypatch.setattr(image_programs, "busybox", lambda: str(cache / "busybox"))
    program(cache / "trainyard" / "preload" / preload.key() / preload.NAME)
    (RECIPES["jobset"].folder / "manifests").mkdir()
    (RECIPES["jobset"].folder / "manifests" / "crd.yaml").write_text("kind: CustomResourceDefinition\n")


@pytest.fixture(scope="module")
def pins(tmp_path_factory):
    """A file of pins with one package, which pip finds without a network."""
    tmp_path = tmp_path_factory.mktemp("pins")
    with zipfile.ZipFile(tmp_path / TINY, "w") as archive:
        archive.writestr("tiny.py", "ANSWER = 42\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    path = tmp_path / "constraints.txt"
    path.write_text(f"--no-index\n--find-links {tmp_path}\ntiny==1.0\n")
    return path


@pytest.fixture(scope="module")
def template_bundle(pins, tmp_path_factory):
    """A bundle of all that a cache has, with wheels: pip is asked for them once, as that takes seconds."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as monkeypatch:
        fill(folder / "cache", monkeypatch)
        pack.create_bundle(
            folder / "trainyard.tar", with_wheels=True, report=lambda line: None, constraints=pins
        )
    return folder / "trainyard.tar"


@pytest.fixture
def bundle(template_bundle, caches, tmp_path):
    """A copy of that bundle, which is the first cache's; the other cache is the one in use."""
    caches("other")
    return Path(shutil.copy(template_bundle, tmp_path))


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho built\n# " + random.Random(0).randbytes(150_000).hex())
    path.chmod(0o700)


def refusal(path):
    with pytest.raises(LocalClusterError) as error:
        unpack.use_bundle(path, report=lambda line: None)
    return error.value


def holds(cache):
    """Return what a cache has, but for the lock."""
    return sorted(
        str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.name != "lock"
    )


def test_a_bundle_restores_the_caches(bundle, caches):
    unpack.use_bundle(bundle, report=lambda line: None)
    first, second = caches("one"), caches("other")
    assert holds(second) == sorted(
        [
            *holds(first),
            "programs/busybox/busybox",
            "wheels/tiny-1.0-py3-none-any.whl",
            "wheels/wheels.json",
        ]
    )
    obtained = binaries.obtain(report=lambda line: None)
    assert obtained.origin == "cache"
    assert subprocess.run(obtained.argv("etcd"), capture_output=True, text=True).stdout == "built\n"
    assert RECIPES["jobset"].ready
    modes = {path.stat().st_mode & 0o777 for path in second.rglob("*") if path.name != "lock"}
    assert modes == {0o600, 0o700}, "nobody else can read the cache"


def test_a_bundle_can_be_used_twice_and_replaces_what_was_there_or_was_interrupted(bundle, caches):
    stale = caches("other") / ".bundle-abc"
    stale.mkdir(parents=True)
    (stale / "half").write_text("half a program")
    unpack.use_bundle(bundle, report=lambda line: None)
    RECIPES["jobset"].path.write_text("something else")
    unpack.use_bundle(bundle, report=lambda line: None)
    assert RECIPES["jobset"].path.read_text().startswith("#!/bin/sh")
    assert not list(caches("other").glob(".*"))


def test_without_wheels_a_bundle_is_compressed(caches, tmp_path):
    goal = tmp_path / "small.tar.gz"
    bundle_report = pack.create_bundle(goal, with_wheels=False, report=lambda line: None)
    assert goal.stat().st_size == bundle_report["bytes"] < 4 * 300_000 * 0.7
    caches("other")
    assert "wheels" not in unpack.use_bundle(goal, report=lambda line: None)["holds"]


@pytest.fixture
def images_program():
    """The store's program, made while Go is still on PATH."""
    return oci_images.program()


@pytest.mark.skipif(not shutil.which("go"), reason="there is no Go on PATH")
def test_container_images_come_along(images_program, caches, tmp_path, monkeypatch):
    caches("one")
    tools = binaries._built() / build.TOOLS
    tools.write_text(f'#!/bin/sh\nshift\nexec {images_program} "$@"\n')
    tools.chmod(0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tool_image = oci_images.image(oci_images.layer(oci_images.entry("file", b"content")))
    with image_registry.serve() as registry:
        loaded = registry.add("team/tool:1", tool_image)
        image_store.pull(loaded, report=lambda line: None)
        pulled = registry.add("team/other:1", tool_image)
        goal = tmp_path / "bundle"
        bundle_report = pack.create_bundle(
            goal, with_wheels=False, images=[loaded, pulled], report=lambda line: None
        )
    assert manifest.IMAGES in bundle_report["holds"]
    caches("other")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    unpack.use_bundle(goal, report=lambda line: None)
    assert {name for record in store.records() for name in record["names"]} == {loaded, pulled}
    assert not (caches("other") / manifest.IMAGES).exists()


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_cut_bundle_changes_nothing(bundle, caches, tmp_path, share, compressed):
    if compressed:
        caches("one")
        pack.create_bundle(bundle, with_wheels=False, report=lambda line: None)
        caches("other")
    os.truncate(bundle, int(bundle.stat().st_size * share))
    assert "bundle" in refusal(bundle).what
    assert holds(caches("other")) == []
    assert not list(caches("other").glob(".*"))


def test_a_damaged_bundle_changes_nothing(bundle, caches):
    with bundle.open("r+b") as file:
        file.seek(bundle.stat().st_size // 3)
        file.write(b"?")
    assert "wrong checksum" in refusal(bundle).what
    assert holds(caches("other")) == []


def test_a_bundle_that_is_none_is_refused(caches, tmp_path):
    caches("other")
    (tmp_path / "text").write_text("no tar at all")
    assert "cut or damaged" in refusal(tmp_path / "text").what
    assert "no such file" in refusal(tmp_path / "nothing").what
    with tarfile.open(tmp_path / "tar", "w") as tar:
        tar.add(tmp_path / "text", "text")
    assert refusal(tmp_path / "tar").what == "this is not a bundle of Trainyard"


def test_a_bundle_for_another_machine_is_refused(bundle, monkeypatch):
    monkeypatch.setattr(manifest, "target", lambda: ("linux", "riscv64"))
    assert refusal(bundle).what.endswith("and this machine is linux riscv64")


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/outside", "wheels/../../outside", "elsewhere/file", "wheels"]
)
def test_a_bundle_writes_nowhere_but_into_its_folders(caches, tmp_path, path):
    caches("other")
    file = manifest.BundleFile(path, 0, "0", executable=False)
    text = manifest.BundleManifest.here([file]).text()
    with tarfile.open(tmp_path / "evil", "w") as tar:
        member = tarfile.TarInfo(manifest.NAME)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
        tar.addfile(tarfile.TarInfo(path))
    assert "unexpected file" in refusal(tmp_path / "evil").what


@pytest.fixture
def small_disk(tmp_path):
    """Return a function that mounts a disk of so many bytes."""
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(size):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
        return disk

    yield mount
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("looked", [True, False])
def test_a_disk_that_is_too_small_stays_as_it_was(bundle, small_disk, monkeypatch, looked):
    disk = small_disk("400k")
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    if not looked:  # somebody else fills the disk meanwhile
        monkeypatch.setattr(unpack, "_check_space", lambda goal, size: None)
    message = refusal(bundle)
    assert ("MB are free" if looked else "the disk is full") in message.what
    assert holds(disk) == []


def test_a_disk_that_is_too_small_leaves_no_half_bundle(caches, small_disk):
    disk = small_disk("8k")
    with pytest.raises(LocalClusterError, match="the disk is full"):
        pack.create_bundle(disk / "small.tar", with_wheels=False, report=lambda line: None)
    assert list(disk.iterdir()) == []


def test_a_control_plane_of_somebody_elses_is_not_carried_away(caches, tmp_path, monkeypatch):
    system_binaries = binaries.ControlPlaneBinaries(
        "v1.37.2", "path", {"kube-apiserver": ("/usr/bin/kube-apiserver",)}
    )
    monkeypatch.setattr(binaries, "obtain", lambda report: system_binaries)
    with pytest.raises(LocalClusterError, match="TRAINYARD_CONTROLPLANE=build"):
        pack.create_bundle(tmp_path / "bundle", with_wheels=False, report=lambda line: None)


def test_pip_installs_from_the_wheels_alone_where_the_pins_are_the_same(bundle, pins, tmp_path):
    assert wheels.pip_options(pins) == []
    unpack.use_bundle(bundle, report=lambda line: None)
    options = wheels.pip_options(pins)
    assert options[0] == "--no-index"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path / "site")]
    subprocess.run([*pip, *options, "tiny"], check=True)
    assert (tmp_path / "site" / "tiny.py").exists()


def test_other_pins_are_offered_the_wheels_and_another_python_is_not(bundle, pins, tmp_path):
    unpack.use_bundle(bundle, report=lambda line: None)
    other_pins = tmp_path / "others.txt"
    other_pins.write_text("tiny==2.0\n")
    assert wheels.pip_options(other_pins) == wheels.pip_options(pins)[1:]
    note = wheels.folder() / wheels.NOTE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"python": "cp399"}))
    assert wheels.pip_options(pins) == []
