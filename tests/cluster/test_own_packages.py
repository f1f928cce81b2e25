"""What a notebook can import from outside its environment, pods can, and they see nothing beside."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "0.1"
[tool.setuptools.packages.find]
where = ["{where}"]
include = ["{name}*"]
"""
SESSION = """
import subprocess, sys
import kitlib as kit

cluster = kit.create_cluster("local", name=sys.argv[1], nodes=1)
try:
    subprocess.run(sys.argv[2:], check=True)  # a package is installed while the cluster runs
    sys.path.append(PLACE + "/appended")
    run = kit.launch("uses.py", cluster=cluster, nodes=1)
    try:
        run.wait(timeout=240)
    finally:
        print(run.logs(rank=0))
finally:
    cluster.delete()
"""
USES = """
import os
import appended, bypath, chained, flat, linked, srclayout, strict, torch, zipped
from flat import data
for module in (appended, bypath, chained, flat, linked, srclayout, strict, zipped):
    print(module.__name__, module.VALUE)
print("data", data.TEXT)
print("closed", [open(PLACE + "/path/.env").read(), os.listdir(PLACE + "/path/.git")])
print("beside", os.path.exists(PLACE + "/secret"))
"""


def package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"VALUE = 'value of {name}'\n")
    return folder / name


def project(place: Path, name: str, where: str = ".") -> Path:
    package(place / name / where, name)
    (place / name / "pyproject.toml").write_text(PROJECT.format(name=name, where=where))
    return place / name


def environment(place: Path) -> Path:
    """Make an environment that is chained to this one by a .pth file; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], check=True)
    packages = next((place / "env" / "lib").glob("python*")) / "site-packages"
    site_packages = sysconfig.get_path("purelib")
    (packages / "chain.pth").write_text(
        f"import site; site.addsitedir({site_packages!r})\n{place / 'more'}\n"
    )
    package(place / "more", "chained")
    (packages / "linked").symlink_to(package(place / "elsewhere", "linked"))
    return place / "env" / "bin" / "python"


def installation(python: Path, *words: object) -> list[str]:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    return [*pip, "--no-build-isolation", *map(str, words)]


@pytest.mark.slow  # its rules one by one: unit/test_cluster_environment.py
def test_pods_import_what_the_notebook_can_and_see_nothing_beside(tmp_path):
    python, name = environment(tmp_path), f"ty-own-{os.getpid()}"
    flat = project(tmp_path, "flat")
    (flat / "flat" / "data.py").write_text(
        "from pathlib import Path\nTEXT = (Path(__file__).parent / 'a.txt').read_text()\n"
    )
    (flat / "flat" / "a.txt").write_text("of the package")
    (tmp_path / "secret").write_text("beside")
    strict = project(tmp_path, "strict")
    subprocess.run(
        installation(python, "-e", strict, "--config-settings", "editable_mode=strict"), check=True
    )
    subprocess.run(installation(python, "-e", project(tmp_path, "srclayout", "src")), check=True)
    package(tmp_path / "path", "bypath")
    (tmp_path / "path" / ".env").write_text("TOKEN=1")
    package(tmp_path / "path", ".git")
    package(tmp_path / "appended", "appended")
    with zipfile.ZipFile(tmp_path / "zipped.egg", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 'value of zipped'\n")
    run = tmp_path / "run"
    run.mkdir()
    for file, text in (("uses.py", USES), ("session.py", SESSION)):
        (run / file).write_text(f"PLACE = {str(tmp_path)!r}\n{text}")
    output = subprocess.run(
        [python, "session.py", name, *installation(python, "-e", flat)],
        cwd=run,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'path'}:{tmp_path / 'zipped.egg'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = output.stdout.splitlines()
    names = ("appended", "bypath", "chained", "flat", "linked", "srclayout", "strict", "zipped")
    assert [line for line in lines if " value of " in line] == [f"{n} value of {n}" for n in names], output
    assert lines[-3:] == ["data of the package", "closed ['', []]", "beside False"]
