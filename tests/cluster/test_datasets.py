"""Datasets prepared by Jobs on a real volume, fetched from a real server on the host, or drawn."""

import json
import re
import socket
import subprocess
import sys
import threading

import pytest

import kitlib as kit
from kitlib import config
from kitlib.datasets import dataset
from kitlib.errors import BadInput, DatasetFailed
from kitlib.k8s import manifests

from ..programs.release_server import Release, serving
from ..programs.small_archive import PATH, archive, sources_for

MANIFEST = config.manifests("dataset", "job.yaml")

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def volume(local_cluster):
    """A volume of these tests, deleted with them and their Jobs."""
    created = local_cluster.create_volume("prepared", size="1Gi")
    yield created
    for run in local_cluster.runs():
        if run["run"].startswith("prepare-"):
            local_cluster.run(run["run"]).delete()
    created.delete()


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def server(content, monkeypatch):
    """A server on an address of this machine that pods reach; the program takes its archive for CIFAR-10."""
    build = dataset.DatasetJob.build

    def with_small_sources(job):
        program, main = build(job)
        program["data"]["sources.py"] = sources_for(content)
        return [program, main]

    release = Release(files={PATH: content})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 9))  # nothing is sent: it tells which address this machine goes by
        host = route.getsockname()[0]
    with serving(release, host) as url:
        monkeypatch.setenv("TRAINYARD_DATASET_MIRROR", url)
        monkeypatch.setattr(dataset.DatasetJob, "build", with_small_sources)
        yield release


def listed(volume, path=""):
    return [entry["name"] for entry in volume.ls(path)]


def test_a_job_fetches_verifies_and_unpacks_and_the_second_call_finds_it(server, volume):
    server.cuts[PATH] = [5000]
    dataset = kit.prepare_dataset("cifar10", volume=volume, synthetic=False)
    assert (dataset.synthetic, dataset.train_images, dataset.test_images) == (False, 200, 50)
    assert dataset.path == "/data/cifar10"
    assert dataset.classes[3] == "cat"
    assert listed(volume, "cifar10") == ["cifar-10-batches-py", "dataset.json", "sample.npz"]
    assert [byte_range for _, byte_range in server.requests] == [None, "bytes=5000-"]
    again = kit.prepare_dataset("cifar10", volume=volume)
    assert repr(again) == repr(dataset)
    assert len(server.requests) == 2
    assert "synthetic" not in repr(dataset.preview())
    assert "cat" in repr(dataset.preview())


def _launch(volume, name):
    """Launch a Job for a dataset that is there, into a folder of its own."""
    from kitlib.display.progress import progress

    job = dataset.DatasetJob("cifar10", volume=volume, folder=name, synthetic=False)
    return kit.launch(job, cluster=volume.cluster), progress(name), 120


def test_a_job_whose_pod_is_killed_goes_on_in_another(server, volume):
    server.holds[PATH] = threading.Event()
    launched = _launch(volume, "killed")
    run = launched[0]
    for line in run.logs(rank=0, follow=True):
        if json.loads(line).get("doing", "").startswith("downloading"):
            break
    (pod,) = run.pods()
    volume.cluster.kubectl(f"delete pod {pod['pod']} --grace-period=0 --force")
    server.holds[PATH].set()
    assert dataset._follow(*launched)["train_images"] == 200
    assert server.requests[-1][1].startswith("bytes=")


def test_where_nothing_answers_stand_ins_are_drawn_and_every_view_says_so(volume, monkeypatch):
    monkeypatch.setenv("TRAINYARD_DATASET_MIRROR", "http://127.0.0.1:9")
    dataset = kit.prepare_dataset("mnist", volume=volume, limit=100)
    assert dataset.synthetic
    assert "SYNTHETIC" in repr(dataset)
    assert "synthetic" in dataset._repr_html_().lower()
    assert "synthetic" in repr(dataset.preview())
    assert dataset.train_images == 100
    with pytest.raises(DatasetFailed, match="no source could be reached"):
        kit.prepare_dataset("mnist", volume=volume, synthetic=False)


def test_a_folder_of_ones_own_images_becomes_a_dataset(volume, tmp_path):
    from PIL import Image

    for part, count in (("train", 3), ("val", 1)):
        for number, name in enumerate(("cat", "dog")):
            folder = tmp_path / "My pets" / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                colour = (200 * number, 100, 50 * index)
                Image.new("RGB", (40 + index, 30), colour).save(folder / f"{index}.png")
    dataset = kit.upload_image_folder(tmp_path / "My pets", volume=volume)
    assert (dataset.name, dataset.classes, dataset.train_images, dataset.test_images) == (
        "my-pets",
        ("cat", "dog"),
        6,
        2,
    )
    assert listed(volume, "my-pets") == ["dataset.json", "sample.npz", "train", "val"]
    assert repr(dataset.preview()) == "my-pets; 6 images, of the classes cat, dog"
    (tmp_path / "My pets" / "train" / "cat" / "0.png").write_text("no image")
    with pytest.raises(BadInput, match="image cannot be read"):
        kit.upload_image_folder(tmp_path / "My pets", volume=volume)
    with pytest.raises(BadInput, match="no images in folders"):
        kit.upload_image_folder(tmp_path / "My pets" / "train" / "cat", volume=volume)


def test_the_manifest_as_shipped_prepares_the_dataset_by_the_commands_of_its_header(local_cluster, tmp_path):
    shared, kubectl = local_cluster.create_volume("shared"), local_cluster.kubectl
    commands = re.findall(r"^#     kubectl (.+)$", MANIFEST.read_text(), re.M)
    try:
        for command in commands:  # run in the repository's root, as a reader does
            kubectl(re.sub(r"(programs|manifests)/", rf"{config.DATA}/\1/", command))
        kubectl("wait job/prepare-cifar10 --for=condition=Complete --timeout=300s")
        assert json.loads(shared.read("cifar10/dataset.json"))["name"] == "cifar10"
    finally:
        kubectl("delete job,configmap prepare-cifar10 --ignore-not-found")
        kubectl("wait pod -l batch.kubernetes.io/job-name=prepare-cifar10 --for=delete --timeout=60s")
        shared.delete()


@pytest.mark.parametrize("folder", ["trainer", "parameter-server"])
def test_a_program_that_is_only_a_placeholder_fails(folder):
    """Whoever forgets to replace it reads so in the log of a pod that failed, not in one that is Complete."""
    items = [item for path in config.manifests(folder, ".").glob("*.yaml") for item in manifests.read(path)]
    programs = [text for item in items for name, text in item.get("data", {}).items() if name.endswith(".py")]
    assert programs
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "placeholder" in done.stderr
