"""The table of images: which entry an image finds, what is run, and that the documentation shows it."""

import random
import shutil
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from kitlib.clusters.trainer_image import missing_tag as missing_for_the_kit
from kitlib.config import DEFAULT_IMAGE
from localkube.controlplane.recipes import RECIPES
from localkube.kubelet.images import image_programs, listing
from localkube.kubelet.images.container_image import ResolvedImage
from localkube.kubelet.images.image_table import UNKNOWN, ignored_mounts, missing_tag, split, stand_in, table

from ..patience import until

BUSYBOX = shutil.which("busybox", path=image_programs.HOST_PATH)
DOCUMENT = Path(__file__).parents[2] / "docs" / "images.md"


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        ("busybox", "busybox", "latest"),
        ("docker.io/library/busybox:1.36", "busybox", "1.36"),
        ("public.ecr.aws/docker/library/nginx", "nginx", "latest"),
        ("localhost:5000/trainyard/trainer@sha256:0", "trainyard/trainer", "latest"),
        ("1234.dkr.ecr.eu-west-1.amazonaws.com/trainyard/trainer:abc", "trainyard/trainer", "abc"),
        ("registry.k8s.io/jobset/jobset:v0.12.0@sha256:0", "jobset/jobset", "v0.12.0"),
        ("somebody/python:3", "somebody/python", "3"),
    ],
)
def test_an_image_is_known_by_its_repository_and_tag(image, repository, tag):
    assert split(image) == (repository, tag)


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        ("registry.k8s.io/nginx-slim:0.7", "a small static web server"),
        ("quay.io/coreos/etcd:v3.4.3", "etcd 3.4.13, built from its Go module"),
        ("gcr.io/etcd-development/etcd:v3.6.5", "the control plane's own etcd"),
        (
            "kubeflow/training-operator:v1-855e096",
            "Kubeflow Training Operator v1.8.1, built from its Go module",
        ),
        (
            "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
            "the same vector addition, by the kit's torch",
        ),
        ("nvcr.io/nvidia/k8s/cuda-sample:nbody", UNKNOWN.shown),
        ("somebody/python", UNKNOWN.shown),
        ("me/etcd:v3.5.9", UNKNOWN.shown),
        ("me/jobset/jobset", UNKNOWN.shown),
        ("team/pause", UNKNOWN.shown),
    ],
)
def test_an_image_finds_the_first_entry_that_fits(image, shown):
    assert stand_in(image).shown == shown


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({}, ["/entry", "default"]),
        ({"args": ["other"]}, ["/entry", "other"]),
        ({"command": ["/mine"]}, ["/mine"]),
        ({"command": ["/mine"], "args": ["other"]}, ["/mine", "other"]),
        ({"command": ["tool", "-v"]}, ["/here/it", "is", "-v"]),
    ],
)
def test_commands_and_arguments_combine_as_in_kubernetes(container, line):
    image = ResolvedImage(
        "i", entrypoint=["/entry"], command=["default"], provides=["tool"], program=["/here/it", "is"]
    )
    assert image.command_line(container) == line


def test_an_image_without_a_command_has_none():
    assert ResolvedImage("i").command_line({}) is None
    assert ResolvedImage("i").command_line({"args": ["x"]}) == ["x"]


def test_mounts_that_a_stand_in_ignores_are_named():
    mounts = [{"mountPath": path} for path in ("/etc/nginx/conf.d", "/etc/nginxes", "/usr/share/nginx/html")]
    assert ignored_mounts({"image": "nginx", "volumeMounts": mounts}) == ["/etc/nginx/conf.d"]


@pytest.mark.parametrize(
    ("image", "missing"),
    [
        ("pytorch/pytorch:2.15.0", True),
        ("docker.io/pytorch/pytorch:2.15.0-gpu", True),
        ("index.docker.io/pytorch/pytorch:2.15", True),
        (DEFAULT_IMAGE, False),
        ("pytorch/pytorch", False),
        ("pytorch/pytorch:1.13.0-cuda11.6-cudnn8-devel", False),
        ("pytorch/pytorch:0.4-cuda9-cudnn7-devel", False),
        ("registry.example/pytorch/pytorch:mine", False),
        (f"pytorch/pytorch:mine@sha256:{'0' * 64}", False),
        ("busybox:no-such-tag", False),
    ],
)
def test_a_tag_that_docker_hub_does_not_have_of_a_known_repository_is_told(image, missing):
    words = missing_tag(image)
    assert bool(words) is missing
    assert not missing or DEFAULT_IMAGE.rpartition(":")[2] in words
    assert missing_for_the_kit(image) == words  # the kit's and the nodes' answers are the same


def test_every_program_of_the_table_is_one_that_can_be_found_or_obtained():
    ways = {
        *RECIPES,
        *image_programs.SCRIPTS,
        *image_programs.FROM_THE_HOST,
        "applets",
        "kubectl",
        "etcd",
        "metrics-server",
    }
    assert {entry.program for entry in table()} - {""} <= ways
    assert all(entry.provides for entry in table() if entry.program not in ("", "applets"))


def test_the_documentation_shows_the_table():
    assert listing.document() in DOCUMENT.read_text(), (
        "write it anew: python -m localkube.kubelet.images.listing docs/images.md"
    )


@pytest.mark.parametrize(
    ("image", "is_replaced"),
    [
        ("trainyard/trainer", True),
        ("docker.io/trainyard/trainer:latest", True),
        ("pytorch/pytorch:2.15.0-cuda13.2-cudnn9-runtime", False),
        ("docker.io/pytorch/pytorch", False),
        ("localhost:5000/pytorch/pytorch", False),
        ("torchelastic/examples:0.2.0", False),
        ("me/pytorch-cpu:v1", False),
        ("team/trainyard/trainer", False),
        ("localhost:5000/trainyard/trainer", False),
        ("python:3.12", False),
        ("busybox", False),
    ],
)
def test_the_kits_own_image_alone_is_replaced_without_asking_a_registry(image, is_replaced, monkeypatch):
    monkeypatch.setenv("TRAINYARD_STAND_INS", str(Path(__file__).parents[2] / "images" / "published.toml"))
    table.cache_clear()
    stand_in.cache_clear()
    try:
        assert stand_in(image).replaces(image) == is_replaced
    finally:
        table.cache_clear()
        stand_in.cache_clear()


@pytest.mark.parametrize(
    ("image", "is_preferred"),
    [
        ("pytorch/pytorch:mine", True),
        ("ghcr.io/pytorch/pytorch:1", True),
        ("localhost:5000/pytorch/pytorch:mine", False),
        ("registry.example/pytorch/pytorch@sha256:0", False),
        ("registry.example/trainyard/trainer:1", True),
        ("me/pytorch-cpu:v1", False),
        ("busybox", False),
    ],
)
def test_an_image_of_ones_own_registry_is_not_replaced_when_it_is_refused(image, is_preferred):
    assert stand_in(image).is_preferred_to(image) == is_preferred


def test_every_user_may_enter_the_directory_of_applets_and_run_them():
    folder = Path(image_programs.Programs().find("applets").directory)
    assert folder.stat().st_mode & 0o777 == 0o755
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o555 == 0o555
        assert (
            not path.is_symlink() or path.resolve().parent == folder
        )  # nothing lies elsewhere in a container


@pytest.mark.parametrize("program", ["", BUSYBOX or ""])
def test_nc_probes_connects_and_listens_with_and_without_a_busybox(program):
    nc = f"{image_programs.applets_directory(program)}/nc"

    def run(*words, text=""):
        return subprocess.run(
            [nc, *words], input=text, capture_output=True, text=True, check=False, timeout=60
        )

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert run("-z", "-w", "2", "127.0.0.1", port).returncode == 0
        assert "open" in run("-zv", "127.0.0.1", port).stderr
    assert run("-z", "-w2", "127.0.0.1", port).returncode == 1
    assert "refused" in run("-vz", "127.0.0.1", port).stderr
    assert "bad address" in run("-z", "no.such.name.invalid", "80").stderr
    port = str(random.randrange(20_000, 30_000))  # no client's own: a connection to that may be to itself
    for listening in (["-l", "-p", port], ["-lp", port], ["-l", "127.0.0.1", port]):
        with subprocess.Popen(
            [nc, *listening], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as listener:
            until(lambda: psutil.Process(listener.pid).net_connections())
            assert run("127.0.0.1", port, text="hello\n").returncode == 0
            assert listener.communicate(timeout=60)[0] == "hello\n"


def test_a_bundle_brings_busybox_to_a_machine_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr(image_programs, "HOST_PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert image_programs.busybox() == ""
    bundled = tmp_path / "trainyard" / "programs" / "busybox" / "busybox"
    bundled.parent.mkdir(parents=True)
    bundled.write_text("#!/bin/sh\necho telnet\n")
    bundled.chmod(0o755)
    assert image_programs.busybox() == str(bundled)
    folder = Path(image_programs.applets_directory(str(bundled)))
    assert (folder / "telnet").readlink() == Path("busybox")
    assert image_programs.Programs().missing_applets({"command": ["telnet", "api"]}) == []


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["sh", "-c", "until nc -z -w 2 api 443; do echo waiting; sleep 2; done"], []),
        (["telnet", "api", "80"], ["telnet"]),
        (["sh", "-c", "ping -c 1 $host && wget -q http://ping.example/nc.txt"], ["wget"]),
        (["sh", "-c", "apk add --no-cache curl"], ["apk"]),
        (["sh", "-c", "echo $nc; ./ping; cat telnet.txt; export httpd=1"], []),
    ],
)
def test_without_a_busybox_the_missing_programs_of_a_command_are_named(command, missing, monkeypatch):
    monkeypatch.setattr(image_programs, "HOST_PATH", "/nowhere")
    assert image_programs.Programs().missing_applets({"command": command}) == missing


@pytest.mark.skipif(BUSYBOX is None, reason="needs Debian's package busybox-static")
def test_names_are_looked_up_as_the_hosts_programs_do_and_plain_mode_keeps_those():
    folder = image_programs.Programs().find("applets").directory
    assert (
        "Address 1: 127."
        in subprocess.run(
            [f"{folder}/nslookup", "localhost"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert image_programs.Programs(preloaded=True).busybox == ""
