"""The control plane as a Python package: what the wheel says of itself, and that it is found."""

import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from localkube.controlplane import binaries, build
from localkube.paths import CONTENTS, OPERATORS_PACKAGE, PACKAGE, target
from localkube.runtime import preload

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


INDEX_BYTES = 100 * 10**6
INTERPRETER = 3  # the type of the segment that names a dynamic program's loader, in elf.h


def segments(program):
    """Return the types of a 64-bit ELF program's segments."""
    with program.open("rb") as file:
        head = file.read(4096)
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    return [struct.unpack_from("<I", head, start + index * size)[0] for index in range(count)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels for this machine; their programs come from the cache, or are built into it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "tools" / "wheel.py"), "--output", str(folder), target()[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    """A folder into which pip has installed the wheels."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", folder, *wheels], check=True)
    return folder


def find(installed, tmp_path):
    """Return what a Python with this package, without Go and cache, says of the control plane."""
    program = (
        "import json; from localkube.controlplane import binaries; lines = [];\n"
        "from localkube.errors import LocalClusterError\n"
        "try: print(json.dumps(binaries.obtain(report=lines.append).argv('kubectl')))\n"
        "except LocalClusterError as error: print(json.dumps(str(error)))"
    )
    environment = os.environ | {
        "PATH": str(tmp_path),
        "PYTHONPATH": f"{ROOT}:{installed}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TRAINYARD_CONTROLPLANE": "package",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    return json.loads(done.stdout)


def test_without_an_architecture_the_wheel_is_this_machines(capsys, monkeypatch):
    sys.path.insert(0, str(ROOT / "tools"))
    import wheel as tool

    wheels = []
    monkeypatch.setattr(tool, "make", lambda *names, **_: wheels.append(names[:2]) or ROOT)
    assert tool.main([]) == 0 and tool.main(["arm64", "amd64"]) == 0
    assert wheels == [
        (name, architecture)
        for architectures in ([target()[1]], ["arm64", "amd64"])
        for name in ("controlplane", "operators")
        for architecture in architectures
    ]
    assert tool.parse(["arm64"]).architecture == ["arm64"]
    with pytest.raises(SystemExit):
        tool.parse(["z80"])
    assert "'z80' is not one of amd64, arm64" in capsys.readouterr().err


@pytest.mark.timeout(900)
def test_each_wheel_is_for_any_python_and_within_an_indexs_limit(wheels):
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[target()[1]]
    assert [wheel.name.partition("-")[0] for wheel in wheels] == [PACKAGE, OPERATORS_PACKAGE]
    for wheel in wheels:
        assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{machine}.whl")
        assert wheel.stat().st_size < INDEX_BYTES * 0.9
        with zipfile.ZipFile(wheel) as archive:
            about = next(name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
            assert "Root-Is-Purelib: false" in archive.read(about).decode()


def test_without_go_the_program_of_the_package_is_found_and_runs(installed, tmp_path):
    command = find(installed, tmp_path)
    assert command[0].startswith(str(installed))
    done = subprocess.run([*command, "version", "--client"], capture_output=True, text=True, check=False)
    assert f"Client Version: {binaries.VERSION}" in done.stdout
    assert INTERPRETER not in segments(Path(command[0])), "it is static: it runs with any C library"


@pytest.mark.skipif(not shutil.which("go"), reason="Go reads the modules of a program")
@pytest.mark.parametrize(
    ("package", "module"), [(PACKAGE, "k8s.io/kubernetes"), (OPERATORS_PACKAGE, "sigs.k8s.io/jobset")]
)
def test_each_module_of_each_program_has_its_licence_text_in_the_wheel(wheels, package, module, tmp_path):
    (wheel,) = (wheel for wheel in wheels if wheel.name.startswith(f"{package}-"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for packed in tmp_path.rglob("*.tar"):
        with tarfile.open(packed) as archive:
            archive.extractall(tmp_path / "unpacked", filter="data")
    for program in tmp_path.glob("*/binaries/*"):
        program.chmod(0o755)  # which zipfile forgets, and Go looks for
    done = subprocess.run(["go", "version", "-m", tmp_path], capture_output=True, text=True, check=True)
    lines = re.findall(r"^\tdep\t(\S+)\t(\S+).*\n(?:\t=>\t(\w\S+)\t(\S+))?", done.stdout, flags=re.MULTILINE)
    modules = {f"{replacement or path}@{release or version}" for path, version, replacement, release in lines}
    assert len(modules) > 100 and any(name.startswith(f"{module}@") for name in modules)
    (texts,) = tmp_path.glob("*.dist-info/licenses/licenses")
    without = [
        name
        for name in [*modules, "go"]
        if not any(path.is_file() and path.stat().st_size for path in (texts / name).rglob("*"))
    ]
    assert without == []
    metadata = next(tmp_path.glob("*.dist-info/METADATA")).read_text()
    assert "Author: The Trainyard authors" in metadata and "Project-URL: " in metadata
    assert "the licence texts of all modules" in metadata.partition("\n\n")[2]


def test_operators_come_from_the_package_with_their_manifests(installed, tmp_path):
    program = (
        "import json; from localkube.controlplane import programs\n"
        "found = programs.obtain(['jobset'], report=lambda line: None)\n"
        "print(json.dumps([str(each.folder) for each in found]))"
    )
    environment = os.environ | {
        "PATH": str(tmp_path),
        "PYTHONPATH": f"{ROOT}:{installed}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    (folder,) = map(Path, json.loads(done.stdout))
    assert folder.is_relative_to(tmp_path)
    assert os.access(folder / "jobset", os.X_OK)
    assert list((folder / "manifests").rglob("*.yaml"))


def test_a_package_of_other_sources_is_passed_over(installed, tmp_path):
    contents = installed / PACKAGE / "binaries" / CONTENTS
    before = contents.read_text()
    contents.write_text(json.dumps({build.PROGRAM: "0123456789ab"}))
    try:
        assert "was built from other sources (0123456789ab)" in find(installed, tmp_path)
    finally:
        contents.write_text(before)


@pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"), reason="needs the Python package ziglang: make wheel"
)
def test_plain_modes_library_is_in_the_wheel_and_is_found_without_a_compiler(installed, tmp_path):
    program = "from localkube.runtime import preload; print(preload.obtain(print))"
    environment = os.environ | {
        "PATH": "",
        "PYTHONPATH": f"{ROOT}:{installed}",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == f"{installed / PACKAGE / 'binaries' / preload.NAME}\n", done.stderr
