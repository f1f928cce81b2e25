"""The kit in a container as most people get one: ``docker run`` without a flag, as an ordinary user.

Where there is no Docker these tests are skipped, unless TRAINYARD_NEEDS_DOCKER says that they must run, as it
does in continuous integration.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.controlplane import binaries, etcd_snapshot
from localkube.paths import cache_dir
from localkube.runtime import preload

from . import machine_image

REPOSITORY = Path(__file__).resolve().parents[2]
VISITOR = 65534
BINDER_BYTES = 2 * 2**30
OPENED = ("--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined")

if MISSING := machine_image.missing():
    if os.environ.get("TRAINYARD_NEEDS_DOCKER"):
        pytest.fail(f"plain mode in a container is NOT TESTED: {MISSING}", pytrace=False)
    pytest.skip(f"plain mode in a container is NOT TESTED: {MISSING}", allow_module_level=True)


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """Run Python in a new container of an image of this machine, and return what it prints as JSON."""
    image = machine_image.make_image()
    cache = _cache_for_visitor(tmp_path_factory.mktemp("cache"))
    places = {Path(place).resolve() for place in (sys.prefix, sys.base_prefix, REPOSITORY)}
    shared = [word for place in places for word in ("--volume", f"{place}:{place}:ro")]
    variables = {
        "HOME": "/home/visitor",
        "XDG_CACHE_HOME": "/cache",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment_options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]

    def run(*command: str, user: int = VISITOR, options: tuple[str, ...] = ()) -> dict:
        words = ["docker", "run", "--rm", "--user", str(user), *options, *shared, *environment_options]
        words += [
            "--volume",
            f"{cache}:/cache",
            "--workdir",
            str(REPOSITORY),
            image,
            sys.executable,
            *command,
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _cache_for_visitor(folder: Path) -> Path:
    """Copy what a cluster needs of the cache: the original is its owner's alone."""
    obtained = binaries.obtain(report=print)
    needed = {Path(command[0]).parent for command in obtained.programs.values()}
    needed |= {preload.obtain(report=print).parent, etcd_snapshot.obtain(obtained, report=print)}
    for place in needed:
        if place.is_relative_to(cache_dir()):
            shutil.copytree(place, folder / "trainyard" / place.relative_to(cache_dir()))
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, VISITOR, VISITOR)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_jobs_train_at_once_in_an_unprivileged_container(visit):
    report = visit("tests/cluster/visit.py")
    assert report["mode"] == "plain"
    assert min(report["accuracies"]) > 0.9
    assert report["memory"] < BINDER_BYTES
    assert report["left"] == []


@pytest.mark.parametrize("user", [VISITOR, 0])
def test_the_advice_to_administrators_is_what_allows_namespaces(visit, user):
    closed = visit("-m", "localkube", "doctor", user=user)["result"]
    assert not closed["namespaces"]["allowed"] and closed["mode"] == "plain"
    assert " ".join(OPENED) in closed["namespaces"]["fix"]
    opened = visit("-m", "localkube", "doctor", user=user, options=OPENED)["result"]
    assert opened["namespaces"]["allowed"], opened["namespaces"]
