"""``pip install trainyard-kit`` in an empty environment, from a folder of wheels and without a network.

``tools/dev.py test-wheel`` downloads the folder into build/wheels, as constraints.txt pins it; the variable
TRAINYARD_WHEELS names another one. The wheels of the kit and of its control plane are made anew each time.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import addresses
import pytest

from localkube.paths import target

from ..node.restrictions import NOBODY
from . import kit_wheel

ROOT = Path(__file__).parents[2]
WHEELS = Path(os.environ.get("TRAINYARD_WHEELS", ROOT / "build" / "wheels"))
OURS = addresses.DISTRIBUTIONS
NOTEBOOKS = ("00_start", "01_create_a_cluster", "05_indexed_job")
OTHERS = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2400)]


def pip(*words, python=sys.executable):
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheels():
    """The folder of wheels: what is pinned, as far as it is missing, and ours."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    if not list(WHEELS.glob("torch-*")):
        pip(
            "download",
            "-c",
            ROOT / "constraints.txt",
            "-d",
            WHEELS,
            f"{ROOT}[workshop,clouds,lab]",
            ROOT / "localkube",
        )
    for old in WHEELS.glob("trainyard*"):
        old.unlink()
    kit_wheel.build(WHEELS, release=True)
    tool = [sys.executable, ROOT / "tools" / "wheel.py", "--output", WHEELS, target()[1]]
    subprocess.run(tool, check=True, capture_output=True)
    return WHEELS


def python_for_all():
    """A Python of this one's version that every user may run; a home of root's is closed to others."""
    name = "python{}.{}".format(*sys.version_info)
    candidates = [sys._base_executable, shutil.which(name, path="/usr/local/bin:/usr/bin")]
    for candidate in filter(None, candidates):
        try:
            subprocess.run([candidate, "-c", "import venv"], check=True, **as_user(NOBODY))
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    return sys._base_executable


def as_user(user):
    return {"user": user, "group": user} if os.getuid() == 0 and user != 0 else {}


@pytest.fixture(scope="module")
def environment(wheels):
    """A new environment with ``trainyard-kit[local,lab,workshop]``, readable by everybody; its bin folder."""
    folder = ROOT / ".pytest_cache" / "wheels-environment"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--python", folder / "bin" / "python"]
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python_for_all(), "-m", "venv", folder], check=True)
    offline = ["--quiet", "--no-index", "--find-links", wheels]
    # uv's cache goes by name and version, which a wheel that is made anew keeps.
    offline += [word for name in OURS for word in ("--refresh-package", name)]
    subprocess.run([*uv, *offline, "trainyard-kit[local,lab,workshop]"], check=True)
    yield folder / "bin"
    shutil.rmtree(folder)


@pytest.fixture(params=[os.getuid(), pytest.param(NOBODY, marks=OTHERS)], ids=["this user", "nobody"])
def run(request, environment):
    """Run a command of the environment as a user with an empty home, and return what it prints."""
    home = ROOT / ".pytest_cache" / f"home-{request.param}"  # a socket's path is short, and not below /tmp
    home.mkdir(parents=True)
    os.chown(home, request.param, request.param)

    def call(*words):
        bare = {"HOME": str(home), "PATH": f"{environment}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        done = subprocess.run(
            [environment / words[0], *words[1:]],
            cwd=home,
            env=bare,
            capture_output=True,
            text=True,
            **as_user(request.param),
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    yield call
    shutil.rmtree(home)


def test_the_installed_packages_are_in_the_new_wheels(wheels, environment):
    (packages,) = (environment.parent / "lib").glob("python*/site-packages")
    wheel_files = list(wheels.glob("trainyard*.whl"))
    assert len(wheel_files) == len(OURS)
    for wheel in wheel_files:
        with zipfile.ZipFile(wheel) as content:
            files = {name: content.read(name) for name in content.namelist()}
        for name in [name for name in files if not name.endswith("/RECORD") and ".data/" not in name]:
            assert (packages / name).read_bytes() == files[name], name


def test_the_kit_brings_its_control_plane_and_all_that_it_needs(environment):
    pip("check", python=environment / "python")
    assert "trainyard-kit-controlplane" in pip("list", python=environment / "python")


def test_the_quick_start_trains_from_wheels_alone(run):
    output = run("trainyard", "quickstart")
    assert "Kubernetes v1.37" in output and "from package" in output
    assert re.search(r"2 workers trained for .* 9\d\.\d% of the test images", output)
    assert "no clusters" in run("trainyard", "cluster", "list")


def test_the_course_runs_from_wheels_alone(run):
    assert "course, and open notebooks/00_start.ipynb" in run("trainyard", "course", "course")
    try:
        for name in NOTEBOOKS:
            run("papermill", "--cwd", "course/notebooks", f"course/notebooks/{name}.ipynb", f"{name}.ipynb")
    finally:
        run("trainyard", "cluster", "delete")
