"""The Dockerfile of the trainers' image, built by a real engine on a stand-in for the official PyTorch image.

Nothing can be pulled in a test. The stand-in has a shell, and a ``python`` that answers for pip and notes
what it was asked to install; so every step of the file is carried out, but for the packages themselves.
"""

import io
import re
import secrets
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from .test_container_images import docker as run_docker
from .test_container_images import with_engine

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images" / "trainer"
PROGRAMS = ("sh", "grep", "cat")
PYTHON = """#!/bin/sh
case "$*" in
"-m pip list "*) echo numpy==2.3.0; echo torch==2.15.0+cu132; echo torchvision==0.29.2+cu132;;
*) echo "$@" > /asked;;
esac
"""


pytestmark = with_engine


def docker(*words):
    done = run_docker(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def base():
    """The stand-in for the official image."""
    name = f"trainyard-test-{secrets.token_hex(4)}:base"
    files = {Path(shutil.which(program)).resolve(): f"bin/{program}" for program in PROGRAMS}
    for program in list(files):
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        files |= {Path(path).resolve(): path.lstrip("/") for path in re.findall(r"(/\S+) \(0x", linked)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for source, path in files.items():
            tar.add(source, path)
        python = tarfile.TarInfo("bin/python")
        python.size, python.mode = len(PYTHON), 0o755
        tar.addfile(python, io.BytesIO(PYTHON.encode()))
    subprocess.run(["docker", "import", "-", name], input=packed.getvalue(), capture_output=True, check=True)
    yield name
    docker("rmi", "--force", name)


def test_the_image_keeps_the_bases_torch_and_gets_what_the_trainers_declare(base):
    trainer_tag = base.replace(":base", ":trainer")
    flags = f"--build-arg=BASE={base}", f"--file={IMAGES / 'Dockerfile'}", f"--tag={trainer_tag}"
    docker("build", "--network=none", *flags, ROOT)
    try:
        paths = "/asked /opt/trainyard/constraints.txt /opt/trainyard/requirements.txt trainers/digits_ddp.py"
        shown = docker("run", "--rm", "--network=none", trainer_tag, "sh", "-c", f"cat {paths}")
    finally:
        docker("rmi", "--force", trainer_tag)
    version, *rest = shown.splitlines()
    assert version.startswith("-m pip install --break-system-packages")
    assert "--constraint /opt/trainyard/constraints.txt --requirement /opt/trainyard/requirements" in version
    assert rest[:2] == ["torch==2.15.0+cu132", "torchvision==0.29.2+cu132"]
    after = (IMAGES / "requirements.txt").read_text() + (ROOT / "trainers" / "digits_ddp.py").read_text()
    assert "\n".join(rest[2:]) == after.rstrip("\n")
