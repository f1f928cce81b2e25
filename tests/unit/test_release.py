"""A release is the same bytes whenever and wherever it is built, and says what it lacks."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from localkube.runtime import preload

sys.path.append(str(Path(__file__).parents[2] / "tools"))  # as it is for a program that lies there
import release

ROOT = Path(__file__).parents[2]
EPOCH = 10**9


def build_kit(folder, *, changed):
    """Build the kit's packages from this checkout's files, modified at changed; return the checksums."""
    source, output = folder / "source", folder / "dist"
    output.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in (source / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / path.relative_to(source)).read_bytes())
        os.utime(path, (changed, changed))
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)}
    release.build_kit(release.Build(source, {}, folder, output, environment))
    return release.checksums(output)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The kit's packages, and the folder in which they were built.

    This is a tenth of what all unit tests compute, so its tests are slow: test_distributions.py holds what a
    package has against the files that it reads, and tests/cluster/test_distribution.py installs a wheel.
    """
    folder = tmp_path_factory.mktemp("first")
    return build_kit(folder, changed=EPOCH - 1), folder / "dist"


@pytest.mark.slow
def test_the_kits_wheel_is_reproducible_elsewhere(kit, tmp_path):
    assert build_kit(tmp_path / "elsewhere", changed=EPOCH + 10**6) == kit[0]


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_plain_modes_library_is_the_same_bytes_when_compiled_at_another_place(tmp_path, monkeypatch):
    compiler = ["cc", "-g"]  # zig's makes debugging tables unless it is told otherwise
    libraries = []
    for place in ("here", "elsewhere"):
        sources = shutil.copytree(preload.SOURCES, tmp_path / place / "preload")
        with monkeypatch.context() as patched:
            patched.setattr(preload, "SOURCES", sources)
            preload.compile_library(compiler, tmp_path / "library.so")
        libraries.append((tmp_path / "library.so").read_bytes())
    assert libraries[0] == libraries[1]


@pytest.mark.slow
def test_a_source_distribution_names_neither_the_user_nor_the_time_of_the_build(kit):
    (archive,) = kit[1].glob("trainyard_kit-*.tar.gz")
    with tarfile.open(archive) as files:
        members = files.getmembers()
    assert {member.mtime for member in members} == {EPOCH}
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert [member.name for member in members] == sorted(member.name for member in members)


@pytest.mark.slow
def test_the_wheel_built_from_the_source_distribution_holds_what_the_kit_reads(kit):
    (wheel,) = kit[1].glob("trainyard_kit-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "manifests", "trainers"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    expected = {f"kitlib/data/{name}" for name in tracked.stdout.splitlines()}
    assert expected
    assert expected <= names


@pytest.mark.slow
def test_the_extra_for_local_clusters_has_the_control_plane_of_its_version(kit):
    (wheel,) = kit[1].glob("trainyard_kit-*.whl")
    _, version, *_ = wheel.stem.split("-")
    with zipfile.ZipFile(wheel) as archive:
        about = archive.read(f"trainyard_kit-{version}.dist-info/METADATA").decode()
    for name in ("localkube", "controlplane", "operators"):
        (line,) = re.findall(rf"Requires-Dist: trainyard-kit-{name}=={version};.*", about)
        assert 'extra == "local"' in line


def test_a_difference_names_the_file_and_the_members_of_a_wheel(tmp_path):
    for folder, text in (("first", "one"), ("second", "two")):
        (tmp_path / folder).mkdir()
        with zipfile.ZipFile(tmp_path / folder / "a-1-py3-none-any.whl", "w") as archive:
            for name, content in (("same", "x"), ("other", text)):
                archive.writestr(zipfile.ZipInfo(name), content)
        (tmp_path / folder / "bill.cdx.json").write_text("{}")
    digests = release.checksums(tmp_path / "first")
    (tmp_path / "first" / release.SUMS).write_text("".join(f"{d}  {n}\n" for n, d in digests.items()))
    differences = release.differences(tmp_path / "first", tmp_path / "second")
    assert differences == ["a-1-py3-none-any.whl: differs", "  other"]
    assert release.differences(tmp_path / "first", tmp_path / "first") == []
    (tmp_path / "second" / "more.whl.new").write_text("")
    assert "more.whl.new: is not in the first release" in release.differences(
        tmp_path / "first", tmp_path / "second"
    )
