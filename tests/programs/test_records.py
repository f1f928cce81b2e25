"""Records of datasets: written by the program that prepares them, read by range by the parameter server's."""

import importlib.util
import json

import numpy as np
import pytest

from kitlib.datasets.dataset import DatasetJob
from kitlib.errors import BadInput

from .forked import TRAINERS


@pytest.fixture
def reader():
    """The class that reads them, as the parameter server's programs have it."""
    path = TRAINERS / "parameter_server" / "records.py"
    spec = importlib.util.spec_from_file_location("records_of_the_parameter_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Records


def pixels(path):
    return np.frombuffer(path.read_bytes(), np.uint8, offset=16).reshape(-1, 784)


def test_records_have_the_label_and_the_pixels_of_each_image_in_order(prepare, reader, tmp_path):
    events, error = prepare("mnist", "--source=synthetic", "--limit=120", "--records")
    assert (error, events[-1]["records"]) == ("", {"train": 120, "test": 20})
    raw = tmp_path / "mnist" / "MNIST" / "raw"
    for part, start in (("train", "train"), ("test", "t10k")):
        records = reader(tmp_path / "mnist" / "records" / f"{part}.npy")
        labels = (raw / f"{start}-labels-idx1-ubyte").read_bytes()[8:]
        images = pixels(raw / f"{start}-images-idx3-ubyte")
        expected = [bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True)]
        assert (len(records), records.read(0, len(records))) == (len(expected), expected)
        assert records.read(3, 11) == expected[3:11]
    with pytest.raises(IndexError, match="15 to 21 of 20"):
        records.read(15, 21)


def test_a_dataset_that_is_there_gets_its_records_and_keeps_its_images(prepare, tmp_path):
    (*_, before), _ = prepare("digits")
    place = tmp_path / "digits"
    assert "records" not in before
    left = place / ".records-of-one-that-was-killed"
    left.mkdir()
    images = (place / "digits.csv.gz").stat()
    (*_, after), _ = prepare("digits", "--records")
    assert after["records"] == {"train": after["train_images"], "test": after["test_images"]}
    assert json.loads((place / "dataset.json").read_text())["records"] == after["records"]
    assert (place / "digits.csv.gz").stat().st_mtime_ns == images.st_mtime_ns
    assert not left.exists()
    inode = (place / "records" / "train.npy").stat().st_ino
    (*_, again), _ = prepare("digits", "--records")
    assert again["records"] == after["records"]
    assert (place / "records" / "train.npy").stat().st_ino == inode, "they are not made twice"


def test_records_of_cifar10_are_its_batches_one_after_the_other(prepare, reader, tmp_path):
    prepare("cifar10", "--source=synthetic", "--limit=50", "--records")
    records = reader(tmp_path / "cifar10" / "records" / "train.npy")
    assert {len(record) for record in records.read(0, 50)} == {1 + 3 * 32 * 32}
    assert sorted(record[0] for record in records.read(0, 50)) == sorted([*range(10)] * 5)


def test_images_of_many_sizes_make_no_records(prepare):
    events, error = prepare("tiny-imagenet-200", "--source=synthetic", "--limit=10", "--records")
    assert events[-1]["event"] == "error"
    assert "digits, mnist, cifar10 can" in error
    with pytest.raises(BadInput, match="cannot be converted to records"):
        DatasetJob("tiny-imagenet-200", volume="shared", records=True)


@pytest.mark.parametrize("content", [None, b"no array", "table"])
def test_files_that_are_no_records_are_refused_with_the_fix(reader, tmp_path, content):
    path = tmp_path / "mnist" / "records" / "train.npy"
    path.parent.mkdir(parents=True)
    if content == "table":
        np.save(path, np.zeros((3, 4)))
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=r'no records|prepare_dataset\("mnist", volume=…, records=True\)'):
        reader(path)


def test_the_job_asks_for_records_only_where_the_notebook_does():
    for records in (True, False):
        job = DatasetJob("mnist", volume="shared", records=records)
        (container,) = job.objects[-1]["spec"]["template"]["spec"]["containers"]
        assert ("--records" in container["args"]) is records
