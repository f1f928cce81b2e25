"""The trainer for folders of images: tiny-imagenet-200, or one's own."""

import pytest
import torch

from .small_data import load_trainer, of_kind, write_folders

tiny, test_job = load_trainer("tiny_imagenet_ddp"), load_trainer("evaluate")


def test_every_class_gives_as_many_images_and_its_folders_place_is_its_number(tmp_path):
    images, labels = tiny.read_folders(write_folders(tmp_path), train=True, limit=10)
    assert images.shape == (12, 64, 64, 3)
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert images[labels == 2].float().mean(dim=(0, 1, 2)).argmax() == 2, "the third class is blue"
    everything, _ = tiny.read_folders(tmp_path, train=False)
    assert len(everything) == 20


def test_a_folder_of_ones_own_may_have_images_of_any_size(tmp_path):
    images, _ = tiny.read_folders(write_folders(tmp_path, side=50, inner="."), train=True)
    assert images.shape == (80, 64, 64, 3)


def test_it_learns_and_the_test_job_reads_its_model(run_trainer, tmp_path):
    data, saved = write_folders(tmp_path), tmp_path / "model.pt"
    flags = ["--data-dir", data, "--epochs", 2, "--batch-size", 8, "--model-file", saved]
    (result,) = of_kind(run_trainer(tiny, *flags), "eval")
    assert result["images"] == 20
    assert result["accuracy"] >= 0.7
    (tested,) = of_kind(run_trainer(test_job, "--data-dir", data, "--model-file", saved), "eval")
    assert tested["accuracy"] == result["accuracy"]
    assert list(tested["per_class"]) == ["n0", "n1", "n2", "n3"]


@pytest.mark.parametrize(("name", "millions"), [("resnet18", 11.3), ("resnet50", 23.9), ("resnet101", 42.9)])
def test_the_networks_are_torchvisions(name, millions):
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in tiny.make_model(name, 200).parameters())
    assert round(counted / 1e6, 1) == millions


def test_missing_and_unreadable_images_are_named(tmp_path):
    data = write_folders(tmp_path)
    torn = data / "tiny-imagenet-200" / "val" / "n1" / "images" / "3.JPEG"
    torn.write_bytes(b"half")
    with pytest.raises(SystemExit, match=r"n1/images/3.JPEG cannot be read as an image"):
        tiny.read_folders(data, train=False)
    with pytest.raises(SystemExit, match="has no folder train"):
        tiny.read_folders(tmp_path / "tiny-imagenet-200" / "val", train=True)
