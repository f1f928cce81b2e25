"""What stands in for the images that published walk-throughs name: a table beside localkube's own."""

import pytest

from kitlib import config
from localkube.kubelet.images import image_table

TABLE = config.DATA / "images" / "published.toml"
IMAGES = {
    "registry.cern.ch/itwinai/dist-ml/itwinai-slim:0.0.7": "main.py",
    "torchelastic/examples:0.1.0rc1": "fetch_trainer.py",
    "gcr.io/my-project/pytorch-mnist-gpu:latest": "mnist.py",
    "620266777012.dkr.ecr.us-west-2.amazonaws.com/pytorch-cpu:latest": "cifar10-model-train.py",
    "042407962002.dkr.ecr.us-west-2.amazonaws.com/pytorch-cpu:latest": "cifar10-model-test.py",
}


@pytest.fixture
def with_the_table(monkeypatch):
    monkeypatch.setenv("TRAINYARD_STAND_INS", str(TABLE))
    image_table.table.cache_clear()
    image_table.stand_in.cache_clear()
    yield
    monkeypatch.undo()
    image_table.table.cache_clear()
    image_table.stand_in.cache_clear()


@pytest.mark.usefixtures("with_the_table")
@pytest.mark.parametrize(("image", "program"), IMAGES.items())
def test_a_published_image_has_its_program_where_the_page_calls_it(image, program):
    entry = image_table.stand_in(image)
    assert entry.directory in ("/workspace", "/app") and entry.preferred
    assert (TABLE.parent / entry.files / program).is_file()


def test_without_the_table_a_published_image_is_unknown():
    assert not image_table.stand_in("gcr.io/my-project/pytorch-mnist-gpu").known


@pytest.mark.usefixtures("with_the_table")
@pytest.mark.parametrize("image", ["me/pytorch-cpu:v1", "pytorch-mnist-gpu", "ghcr.io/me/itwinai-slim:0.0.7"])
def test_an_image_of_ones_own_has_no_stand_in_for_its_name(image):
    assert not image_table.stand_in(image).known


@pytest.mark.usefixtures("with_the_table")
def test_the_table_leaves_other_images_as_they_are():
    assert image_table.stand_in("busybox:1.36").program == "applets"
    assert not image_table.stand_in("busybox:1.36").files
