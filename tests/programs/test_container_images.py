"""An image is built from nothing by a real engine, pushed to a real registry, and pulled from it by digest.

Both are Debian's: ``apt-get install docker.io docker-registry``, and dockerd started. Where they are not,
these tests are skipped, unless TRAINYARD_NEEDS_DOCKER says that they must run, as it does in continuous
integration.
"""

import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import kitlib as kit
from kitlib.config import DEFAULT_IMAGE
from kitlib.errors import BadInput, CommandFailed, KitError, NoContainerEngine
from trainyard_kit.container_images import cluster_build, engines
from trainyard_kit.container_images.build_context import BuildContext
from trainyard_kit.container_images.cluster_build import ImageBuild
from trainyard_kit.container_images.registry import Login, Registry, StoredImage

from .container_registry import PASSWORD, serve_registry

GITHUBS = f"ghcr.io/{DEFAULT_IMAGE}"
MISSING = engines.missing(["docker"]) or (
    "" if shutil.which("docker-registry") else "there is no docker-registry"
)
if MISSING and os.environ.get("TRAINYARD_NEEDS_DOCKER"):
    pytest.fail(f"building and pushing images is NOT TESTED: {MISSING}", pytrace=False)
with_engine = pytest.mark.skipif(
    bool(MISSING), reason=f"building and pushing images is NOT TESTED: {MISSING}"
)


@pytest.fixture
def registry(tmp_path_factory):
    """A registry on this machine; its address."""
    with serve_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


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
def test_an_image_without_a_registry_stays_local(dockerfile):
    image = kit.build_image("trainyard-test/greeting", tag="1", dockerfile=dockerfile)
    docker("rmi", "--force", image.name)
    assert image.reference == "trainyard-test/greeting:1"
    assert "not pushed" in repr(image)
    dockerfile.write_text("FROM scratch\nCOPY nothing-there /\n")
    with pytest.raises(CommandFailed, match="nothing-there"):
        kit.build_image("trainyard-test/broken", tag="1", dockerfile=dockerfile)


def test_a_tag_that_says_nothing_and_a_builder_that_is_not_there_are_refused(dockerfile):
    for tag in ("latest", ""):
        with pytest.raises(BadInput, match="may run an older image"):
            kit.build_image("trainyard/trainer", tag=tag)
    with pytest.raises(BadInput, match="no such builder"):
        kit.build_image("greeting", tag="1", dockerfile=dockerfile, builder="kaniko")


def alone(program, folder):
    """Return a PATH on which there is this program, if there is one at all, and no other."""
    folder.mkdir()
    if path := shutil.which(program):
        (folder / program).symlink_to(path)
    return str(folder)


def test_without_an_engine_it_says_so(monkeypatch, dockerfile, tmp_path_factory):
    monkeypatch.setenv("PATH", alone("docker", tmp_path_factory.mktemp("path") / "bin"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(NoContainerEngine, match="docker"):
        kit.build_image("trainyard/greeting", tag="1", dockerfile=dockerfile)
    local = SimpleNamespace(provider="local", registry=None)
    for builder, words in (("", "docker"), ("cluster", "BuildKit")):
        with pytest.raises(KitError, match=f"(?s){words}.*install missing ones here"):
            kit.build_image(dockerfile=dockerfile, cluster=local, builder=builder)


def test_a_tag_of_the_content_changes_with_what_is_copied_and_with_nothing_else(dockerfile):
    folder = dockerfile.parent

    def tag(**arguments):
        return BuildContext(folder, dockerfile, arguments).tag

    first = tag()
    (folder / ".dockerignore").write_text("*.log\n")
    second = tag()
    (folder / "noise.log").write_text("noise")
    assert first != second == tag()
    (folder / "Dockerfile.dockerignore").write_text("noise.log\n.dockerignore\nDockerfile\n")  # its own rules
    names = {path.name for path in BuildContext(folder, dockerfile).files}
    assert "Dockerfile" in names and not {"noise.log", ".dockerignore"} & names
    (folder / "Dockerfile.dockerignore").unlink()
    os.utime(folder / "greeting.txt", (0, 0))
    assert tag() == second
    assert tag(COLOUR="red") != second
    (folder / "greeting.txt").chmod(0o755)
    third = tag()
    (folder / "greeting.txt").write_text("bye")
    assert len({second, third, tag()}) == 3


TREE = "a/b/c.txt a/b/d.log a/e.txt x.log y.txt keep/me.log keep/sub/z.log .env"
IGNORES = [
    ["*", "!a", "**/*.log"],
    ["*.log", "!keep", "a/b"],
    ["# a comment", "**/*.log", "!keep/**", "keep/sub", ".env"],
    ["a/*/c.txt", "/y.txt", "?.log"],
    ["*", "!a/b/c.txt", "!keep/sub"],
]


@with_engine
@pytest.mark.parametrize("ignore", IGNORES)
def test_the_build_context_excludes_what_the_engine_excludes(tmp_path, ignore):
    for path in (tmp_path / name for name in TREE.split()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / ".dockerignore").write_text("\n".join(ignore))
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY . /\n")
    name = "trainyard-test/ignored:1"
    try:
        built = docker("build", f"--tag={name}", tmp_path)
        assert built.returncode == 0, built.stdout + built.stderr
        saved, sent = subprocess.check_output(["docker", "save", name]), set()
        with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
            for layer in json.load(archive.extractfile("manifest.json"))[0]["Layers"]:
                with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                    sent |= {member.name for member in files if member.isfile()}
    finally:
        docker("rmi", "--force", name)
    ours = {str(path.relative_to(tmp_path)) for path in BuildContext(tmp_path, file).files}
    # These two are always sent, and copied only if no rule leaves them out.
    own_files = {"Dockerfile", ".dockerignore"}
    assert ours - own_files == sent - own_files


class OwnRegistry(Registry):
    """A registry of a cluster's, whose images are those of a folder of the tests."""

    def __init__(self, host, password):
        self.host, self.password, self.images = host, password, {}

    def address(self, name):
        return f"{self.host}/{name}"

    def login(self):
        return Login(self.host, "AWS", self.password)

    def find_image(self, name, tag):
        return self.images.get(tag)


@pytest.fixture
def builds(monkeypatch):
    """The builds that a cluster is asked for; each pushes its image."""
    orders = []

    def run(cluster, build):
        orders.append(build)
        cluster.registry.images[build.target.rpartition(":")[2]] = StoredImage("sha256:0", 5)
        return "sha256:0"

    monkeypatch.setattr(cluster_build, "_run", run)
    return orders


@with_engine
def test_a_login_to_the_clusters_registry_writes_no_configuration(
    tmp_path, tmp_path_factory, dockerfile, monkeypatch
):
    folder = tmp_path_factory.mktemp("aside")
    monkeypatch.setenv("HOME", str(folder / "home"))
    with serve_registry(folder, password=PASSWORD) as address:
        home = OwnRegistry(address, PASSWORD)
        cluster = SimpleNamespace(registry=home)
        image = kit.build_image("greeting", dockerfile=dockerfile, cluster=cluster, builder="here")
        docker("rmi", "--force", image.name)
        assert image.digest.startswith("sha256:") and image.name.endswith(
            f":{BuildContext(tmp_path, dockerfile).tag}"
        )
        assert not (folder / "home").exists()
        assert docker("pull", image.reference).returncode != 0  # the login was for the push alone
        wrong = SimpleNamespace(registry=OwnRegistry(address, "wrong"))
        with pytest.raises(CommandFailed, match="unauthorized|authentication"):
            kit.build_image("greeting", dockerfile=dockerfile, cluster=wrong, builder="here")
        home.images[BuildContext(tmp_path, dockerfile).tag] = StoredImage(image.digest, 7)
        again = kit.build_image("greeting", dockerfile=dockerfile, cluster=cluster, builder="here")
        assert (again.reference, again.build_seconds) == (image.reference, 0)  # it is there: nothing is built


@with_engine
def test_an_engine_here_is_not_asked_where_the_cluster_is_in_a_cloud(dockerfile, builds):
    home = OwnRegistry("registry.example", "x")
    kit.build_image("greeting", dockerfile=dockerfile, cluster=SimpleNamespace(registry=home))
    assert len(builds) == 1


def test_a_clouds_cluster_builds_without_an_engine(dockerfile, monkeypatch, tmp_path, builds):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))
    cluster = SimpleNamespace(registry=OwnRegistry("registry.example", "x"))
    image = kit.build_image("greeting", dockerfile=dockerfile, cluster=cluster, arguments={"A": "1"})
    (order,) = builds
    assert (order.context.arguments, order.target) == ({"A": "1"}, image.name)
    carrier, secret, main = order.objects
    auths = json.loads(secret["stringData"][".dockerconfigjson"])["auths"]
    assert base64.b64decode(auths["registry.example"]["auth"]) == b"AWS:x"
    names = {item["metadata"]["name"] for item in (carrier, secret, main)}
    (docker,) = (item for item in main["spec"]["template"]["spec"]["volumes"] if item["name"] == "docker")
    assert names == {order.name} == {docker["secret"]["secretName"]}
    assert image.reference == "registry.example/greeting@sha256:0" and "compressed" in repr(image)
    with pytest.raises(NoContainerEngine, match="no docker on PATH; there is no podman on PATH"):
        kit.build_image("greeting", dockerfile=dockerfile)


EXISTING = SimpleNamespace(registry=None, provider="existing")


def test_a_cluster_that_builds_has_to_know_where_to_push(dockerfile, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))
    with pytest.raises(BadInput, match="registry=.*TRAINYARD_PULL_SECRET"):
        kit.build_image("greeting", dockerfile=dockerfile, cluster=EXISTING)
    with pytest.raises(BadInput, match="none is configured"):
        kit.build_image("greeting", dockerfile=dockerfile, registry="registry.example/x", builder="cluster")


def test_buildkit_in_a_pod_gets_the_context_the_arguments_and_the_secret(dockerfile, monkeypatch):
    monkeypatch.setenv("TRAINYARD_PULL_SECRET", "push")
    (dockerfile.parent / "run.sh").touch(0o755)
    job = ImageBuild("registry.example/x/a:1", BuildContext(dockerfile.parent, dockerfile, {"A": "1"}))
    carrier, main = job.objects
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(carrier["binaryData"]["context.zip"]))) as archive:
        modes = {member.filename: member.external_attr >> 16 & 0o777 for member in archive.infolist()}
    assert set(modes) >= {"Dockerfile", "greeting.txt"} and modes["run.sh"] == 0o755, "what runs still runs"
    spec = main["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    output = "type=image,name=registry.example/x/a:1,push=true"
    assert container["args"] == ["Dockerfile", output, "--opt=build-arg:A=1"]
    (docker,) = (volume for volume in spec["volumes"] if volume["name"] == "docker")
    assert docker["secret"]["items"] == [{"key": ".dockerconfigjson", "path": "config.json"}]
    assert "securityContext" not in container, "newuidmap gains privileges"


def test_a_context_that_no_configmap_carries_is_refused(dockerfile):
    (dockerfile.parent / "large").write_bytes(os.urandom(1 << 20))
    with pytest.raises(BadInput, match=r"Dockerfile\.dockerignore"):
        ImageBuild("registry.example/x/a:1", BuildContext(dockerfile.parent, dockerfile))


@pytest.mark.parametrize(
    ("words", "bases"),
    [
        ("toomanyrequests: You have reached your unauthenticated pull rate limit.", [None, GITHUBS]),
        ("COPY failed: no such file", [None]),
    ],
)
def test_a_base_that_docker_hub_refuses_for_now_is_taken_from_pytorchs_own_registry(
    words, bases, monkeypatch, builds
):
    run = cluster_build._run

    def refused(cluster, build):
        run(cluster, build)
        if "BASE" not in build.context.arguments:
            raise CommandFailed(words, about="BuildKit", fix="-")

    monkeypatch.setattr(cluster_build, "_run", refused)
    with nullcontext() if bases[1:] else pytest.raises(CommandFailed, match="COPY"):
        kit.build_image(
            "trainyard/mine", cluster=SimpleNamespace(registry=OwnRegistry("registry.example", "x"))
        )
    assert [build.context.arguments.get("BASE") for build in builds] == bases


@pytest.mark.parametrize("line", ["pushed sha256:{}", "[rank 0] pushed sha256:{}"])
def test_the_digest_is_read_from_the_log_whatever_stands_before_it(line):
    digest = "ab" * 32
    assert cluster_build.PUSHED.search(f"#1 done\n{line.format(digest)}\n")[1] == f"sha256:{digest}"


def no_podman():
    """Return why nothing can be pushed with Podman here, or nothing."""
    lacking = [program for program in ("podman", "docker-registry") if shutil.which(program) is None]
    if lacking:
        return f"there is no {' and no '.join(lacking)}"
    done = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False)
    return done.stderr.strip()[-200:] if done.returncode else ""


def test_podman_takes_the_same_words_where_docker_does_not_answer(
    tmp_path, tmp_path_factory, dockerfile, monkeypatch
):
    if why := no_podman():
        pytest.skip(f"Podman is NOT TESTED: {why}")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    folder = tmp_path_factory.mktemp("aside")
    with serve_registry(folder, password=PASSWORD) as address:
        cluster = SimpleNamespace(registry=OwnRegistry(address, PASSWORD))
        image = kit.build_image(
            "greeting", dockerfile=dockerfile, cluster=cluster, arguments={"A": "1"}, builder="here"
        )
        try:
            stored = (folder / "storage").rglob(f"{image.digest.removeprefix('sha256:')}/link")
            assert image.digest.startswith("sha256:") and next(stored, None) is not None
            assert image.layers == 1 and image.bytes > 0
            wrong = SimpleNamespace(registry=OwnRegistry(address, "wrong"))
            with pytest.raises(CommandFailed, match="unauthorized|authentication"):
                kit.build_image("greeting", dockerfile=dockerfile, cluster=wrong, builder="here")
        finally:
            subprocess.run(["podman", "rmi", "--force", image.name], check=True, capture_output=True)
    assert not list(tmp_path.glob("**/config.json"))


def test_a_password_is_not_shown():
    assert "secret" not in repr(Login("registry.example", "AWS", "secret"))


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("trainyard/trainer:1", "docker.io/trainyard/trainer:1"),
        ("it:1", "docker.io/library/it:1"),
        ("localhost/it:1", "localhost/it:1"),
        ("127.0.0.1:5000/it:1", "127.0.0.1:5000/it:1"),
        ("quay.io/it:1", "quay.io/it:1"),
    ],
)
def test_podman_is_given_the_name_that_the_kubelet_looks_for(image, name):
    assert (engines.Engine("podman").name(image), engines.Engine("docker").name(image)) == (name, image)
