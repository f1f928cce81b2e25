"""The Job that prepares a dataset, as it is sent; and folders of one's own images, as they are read."""

import pytest

from kitlib.datasets import image_folder
from kitlib.datasets.dataset import DatasetJob, network_variables
from kitlib.errors import BadInput


def container(job):
    (main,) = job.objects[-1]["spec"]["template"]["spec"]["containers"]
    return main


def test_the_pod_gets_the_notebooks_proxies_and_mirror_and_nothing_else(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("TRAINYARD_DATASET_MIRROR", "http://mirror.example/sets")
    monkeypatch.setenv("SECRET", "of the notebook")
    env = {row["name"]: row["value"] for row in container(DatasetJob("mnist", volume="shared"))["env"]}
    assert env == {
        "HOME": "/tmp",
        "USER": "trainyard",
        "PYTHONUNBUFFERED": "1",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "https_proxy": "http://proxy.example:3128",
        "TRAINYARD_DATASET_MIRROR": "http://mirror.example/sets",
    }
    assert network_variables({"HTTPS_PROXY": "", "NO_PROXY": "localhost"}) == {"NO_PROXY": "localhost"}


def test_the_job_mounts_the_volume_and_carries_the_whole_program():
    job = DatasetJob("cifar10", volume="lab", synthetic=True, limit=500, folder="mine/", name="draw")
    assert container(job)["args"] == ["cifar10", "--root=/data/mine", "--source=synthetic", "--limit=500"]
    program, main = job.objects
    assert {"prepare_dataset.py", "fetch.py", "sources.py", "synthetic.py"} <= set(program["data"])
    volumes = main["spec"]["template"]["spec"]["volumes"]
    assert {"name": "volume", "persistentVolumeClaim": {"claimName": "lab"}} in volumes
    assert {"name": "program", "configMap": {"name": "draw"}} in volumes
    assert main["metadata"]["labels"]["trainyard/run"] == "draw"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": "imagenet"}, "unknown dataset"),
        ({"synthetic": "yes"}, "True, False or None"),
        ({"limit": 3}, "whole number"),
        ({"folder": "../up"}, "leaves the volume"),
    ],
)
def test_an_unknown_dataset_is_refused_before_anything_is_sent(options, words):
    options = {"dataset": "mnist", "volume": "shared", **options}
    with pytest.raises(BadInput, match=words):
        DatasetJob(options.pop("dataset"), **options)


def _images(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"")
    return folder


def test_a_folder_has_its_classes_from_the_folders_in_it(tmp_path):
    dataset = image_folder.read(
        _images(tmp_path, "dog/a.JPG", "cat/deep/b.png", "cat/notes.txt", ".git/x.png")
    )
    assert (dataset.classes, dataset.train, dataset.test) == (["cat", "dog"], 2, 0)
    assert [(path.name, name) for path, name in dataset.images] == [("b.png", "cat"), ("a.JPG", "dog")]


def test_images_for_testing_have_a_folder_of_their_own_and_the_same_classes(tmp_path):
    dataset = image_folder.read(_images(tmp_path, "train/cat/a.png", "train/dog/b.png", "test/cat/c.png"))
    assert (dataset.classes, dataset.train, dataset.test) == (["cat", "dog"], 2, 1)
    _images(tmp_path, "test/owl/d.png")
    with pytest.raises(BadInput, match="no training images: owl"):
        image_folder.read(tmp_path)


def test_a_folder_without_classes_says_what_it_should_be_like(tmp_path):
    with pytest.raises(BadInput, match="no images in folders of classes"):
        image_folder.read(_images(tmp_path, "a.png"))
    with pytest.raises(BadInput, match="no such folder"):
        image_folder.read(tmp_path / "nothing")
