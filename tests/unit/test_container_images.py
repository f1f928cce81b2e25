"""An image is built from nothing by a real engine, pushed to a real registry, and pulled from it by digest.

Both are Debian's: ``apt-get install docker.io docker-registry``, and dockerd started. Where they are not,
these tests are skipped, unless TRAINYARD_NEEDS_DOCKER says that they must run, as it does in continuous
integration.
"""

import os
import shutil
import socket
import subprocess

import pytest

import kitlib as kit
from kitlib.container_images import engine_missing
from kitlib.errors import BadInput, CommandFailed, NoContainerEngine

MISSING = engine_missing() or ("" if shutil.which("docker-registry") else "there is no docker-registry")
if MISSING and os.environ.get("TRAINYARD_NEEDS_DOCKER"):
    pytest.fail(f"building and pushing images is NOT TESTED: {MISSING}", pytrace=False)
with_engine = pytest.mark.skipif(
    bool(MISSING), reason=f"building and pushing images is NOT TESTED: {MISSING}"
)
CONFIGURATION = """
version: 0.1
log: {level: info, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "127.0.0.1:%d"}
"""


@pytest.fixture
def registry(tmp_path):
    """A registry on this machine; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = tmp_path / "registry.yml"
    configuration.write_text(CONFIGURATION % (tmp_path / "storage", port))
    command = ["docker-registry", "serve", configuration]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if "listening on" in line:
                break
        assert "listening on" in said[-1], "".join(said)
        yield f"127.0.0.1:{port}"
        process.terminate()


@pytest.fixture
def dockerfile(tmp_path):
    """A Dockerfile that needs no base, with something to copy beside it."""
    (tmp_path / "greeting.txt").write_text("hello")
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY greeting.txt /greeting.txt\n")
    return file


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)


@with_engine
def test_an_image_is_built_pushed_and_pulled_by_its_digest(registry, dockerfile):
    image = kit.build_image("trainyard/greeting", tag="1", dockerfile=dockerfile, registry=registry)
    try:
        assert image.layers == 1
        assert image.reference == f"{registry}/trainyard/greeting@{image.digest}"
        assert image.digest in repr(image)
        assert docker("rmi", "--force", image.name, image.reference).returncode == 0
        assert docker("image", "inspect", image.reference).returncode != 0
        pulled = docker("pull", image.reference)
        assert pulled.returncode == 0, pulled.stderr
    finally:
        docker("rmi", "--force", image.name, image.reference)


@with_engine
def test_without_a_registry_the_image_stays_here(dockerfile):
    image = kit.build_image("trainyard-test/greeting", tag="1", dockerfile=dockerfile)
    docker("rmi", "--force", image.name)
    assert image.reference == "trainyard-test/greeting:1"
    assert "not pushed" in repr(image)


@with_engine
def test_the_engines_words_are_in_the_error(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY nothing-there /\n")
    with pytest.raises(CommandFailed, match="nothing-there"):
        kit.build_image("trainyard-test/broken", tag="1", dockerfile=tmp_path / "Dockerfile")


@pytest.mark.parametrize("tag", ["latest", ""])
def test_a_tag_that_says_nothing_is_refused(tag):
    with pytest.raises(BadInput, match="an old one"):
        kit.build_image("trainyard/trainer", tag=tag)


def test_without_an_engine_it_says_so(monkeypatch, dockerfile):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(NoContainerEngine, match="docker"):
        kit.build_image("trainyard/greeting", tag="1", dockerfile=dockerfile)
