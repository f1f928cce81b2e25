"""Operators' manifests: fetched from a real web server, and refused if they are not what was checked."""

import functools
import hashlib
import http.server
import io
import re
import subprocess
import tarfile
import threading
from types import SimpleNamespace

import pytest
import yaml

from kitlib import config, plugins
from kitlib.errors import BadInput, InstallFailed
from kitlib.k8s import manifests
from kitlib.k8s.job_kinds import JOBS
from kitlib.operators import catalog, install
from kitlib.operators.catalog import OPERATORS, OperatorPart
from localkube.controlplane.recipes import RECIPES

FILES = {"manifests/base/crd.yaml": b"kind: A\n", "manifests/top.yaml": b"kind: B\n", "README.md": b"no\n"}
PARTS = [part for parts in OPERATORS.values() for part in parts]


def test_the_operator_of_each_kind_of_job_can_be_installed():
    assert {kind.operator for kind in JOBS} - {""} <= set(OPERATORS)
    counted = [resource for kind in JOBS for resource in kind.quota]
    assert len(counted) == len(set(counted))


def test_an_operator_whose_packages_are_an_extra_names_it_before_anything_is_applied(monkeypatch):
    monkeypatch.setitem(plugins.IN_PODS, "elastic", ("kopf", "not_installed_here"))
    cluster = SimpleNamespace(provider="local", built_in=lambda name: "")
    with pytest.raises(BadInput, match="lacks not_installed_here") as missing:
        install("elastic-job", cluster=cluster)
    assert missing.value.fix == "install trainyard-kit with its extra [elastic]"


@pytest.fixture
def served(tmp_path):
    """Serve a folder by HTTP; return the folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def archive(served, tmp_path):
    """A release as a web server has it: its source, the digest being that of the folder that is wanted."""
    folder, address = served
    with tarfile.open(folder / "v1.tar.gz", "w:gz") as tar:
        for name, content in FILES.items():
            member = tarfile.TarInfo(f"operator-1/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    selected = tmp_path / "wanted"
    for name, content in FILES.items():
        if name.startswith("manifests/"):
            path = selected / name.removeprefix("manifests/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return part_of(f"{address}/v1.tar.gz", catalog.digest(selected), "manifests")


def part_of(url, digest, folder="", program=""):
    workload = ("Deployment", "lab", "lab")
    return OperatorPart("lab", "v1", workload, program=program, url=url, folder=folder, digest=digest)


def quiet(text):
    pass


def test_one_folder_of_a_release_is_fetched_and_checked(archive, tmp_path):
    lines = []
    catalog.fetch(archive, tmp_path / "upstream", report=lines.append)
    contents = {
        str(path.relative_to(tmp_path / "upstream")) for path in (tmp_path / "upstream").rglob("*.yaml")
    }
    assert contents == {"base/crd.yaml", "top.yaml"}
    assert "downloading" in lines[0]


def test_the_digest_is_what_sha256sum_prints(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "b.yaml").write_text("y")
    printed = subprocess.run(["sha256sum", "a", "b.yaml"], cwd=tmp_path, capture_output=True, check=True)
    assert catalog.digest(tmp_path) == hashlib.sha256(printed.stdout).hexdigest()


def test_other_files_than_those_that_were_checked_are_refused(archive, tmp_path):
    changed = part_of(archive.url, "0" * 64, archive.folder)
    with pytest.raises(InstallFailed, match="differ from those that the kit was tested with"):
        catalog.fetch(changed, tmp_path / "upstream", report=quiet)


def test_a_release_that_was_cut_is_refused(archive, served, tmp_path):
    path = served[0] / "v1.tar.gz"
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(InstallFailed, match="cannot be unpacked|not those"):
        catalog.fetch(archive, tmp_path / "upstream", report=quiet)


def test_a_release_that_cannot_be_reached_is_named(served, tmp_path):
    missing = part_of(f"{served[1]}/v2.tar.gz", "0" * 64, "manifests")
    with pytest.raises(InstallFailed, match="404"):
        catalog.fetch(missing, tmp_path / "upstream", report=quiet)


def test_local_manifests_are_used_if_they_match_the_published_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    part = OPERATORS["trainer"][0]
    assert catalog.find_local(part) is None
    folder = RECIPES["jobset"].folder
    (folder / "manifests").mkdir(parents=True)
    (folder / "jobset").write_text("the program")
    (folder / "manifests" / "crd.yaml").write_text("a: 1")
    (folder / "jobset").chmod(0o700)
    same = part_of("nowhere", catalog.digest(folder / "manifests"), program="jobset")
    assert catalog.find_local(same) == folder / "manifests"
    assert catalog.find_local(part) is None  # those of another version


def test_an_operator_that_the_kit_does_not_know_is_refused_with_those_it_knows():
    with pytest.raises(ValueError, match="training-operator, trainer"):
        install("training")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_part_is_labelled_so_that_it_is_found_again(part):
    for path in config.manifests("operators", part.name).rglob("kustomization.yaml"):
        ((pair,),) = [[label["pairs"] for label in yaml.safe_load(path.read_text())["labels"]]]
        assert pair == {"trainyard/kit": "true", "trainyard/operator": part.name}


@pytest.mark.parametrize("part", [part for part in PARTS if part.url], ids=lambda part: part.name)
def test_each_part_has_a_version_in_its_address_and_a_digest(part):
    assert part.version in part.url
    assert len(part.digest) == 64


def test_a_gpu_cluster_needs_only_an_image_of_a_known_digest():
    (part,) = OPERATORS["nvidia-device-plugin"]
    (workload,) = manifests.read(config.manifests("operators", part.name, "daemonset.yaml"))
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert not part.url
    assert re.fullmatch(
        rf"nvcr\.io/nvidia/k8s-device-plugin:{part.version}@sha256:[0-9a-f]{{64}}", container["image"]
    )
