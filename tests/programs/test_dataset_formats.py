"""Stand-in images: in the files of the real ones, the same for one seed, and with something to be learnt."""

import hashlib
import json
import pickle

import numpy as np
import pytest
import torch
from torch import nn


@pytest.fixture
def draw(prepare):
    """Draw stand-ins; return the program's last event."""
    return lambda name, *flags, **folder: prepare(name, "--source=synthetic", *flags, **folder)[0][-1]


def content_of(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".npz")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_full_stand_ins_have_as_many_images_as_the_real_ones(prepare):
    from formats import FORMATS

    sizes = {name: (format.train, format.test) for name, format in FORMATS.items()}
    assert sizes == {
        "digits": (1437, 360),
        "mnist": (60_000, 10_000),
        "cifar10": (50_000, 10_000),
        "tiny-imagenet-200": (100_000, 10_000),
    }


@pytest.mark.parametrize("name", ["mnist", "cifar10", "tiny-imagenet-200"])
def test_one_seed_draws_the_same_and_another_one_others(draw, tmp_path, name):
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw(name, "--limit=200", f"--seed={seed}", root=tmp_path / place)
    a, b = (json.loads((tmp_path / place / name / "dataset.json").read_text()) for place in "ab")
    assert a == b
    assert a["synthetic"]
    if name == "tiny-imagenet-200":
        (tmp_path / "c" / name / "dataset.json").unlink()
    assert content_of(tmp_path / "a") == content_of(tmp_path / "b") != content_of(tmp_path / "c")


def test_torchvision_reads_mnist(draw, tmp_path):
    from torchvision.datasets import MNIST

    output = draw("mnist", "--limit=120")
    training, test = (MNIST(tmp_path / "mnist", train=train) for train in (True, False))
    assert (len(training), len(test)) == (120, 20) == (output["train_images"], output["test_images"])
    assert training.data.shape == (120, 28, 28)
    assert sorted(set(training.targets.tolist())) == list(range(10))
    assert training[0][0].size == (28, 28)


def test_torchvision_reads_cifar10_once_it_is_told_the_checksums(draw, tmp_path):
    from torchvision.datasets import CIFAR10

    """Its own are those of the real files, which no other files can have."""
    draw("cifar10", "--limit=120")
    batches = tmp_path / "cifar10" / "cifar-10-batches-py"
    with pytest.raises(RuntimeError, match="corrupted"):
        CIFAR10(tmp_path / "cifar10")

    def checked(names):
        return [[name, hashlib.md5((batches / name).read_bytes()).hexdigest()] for name in names]

    class StandIn(CIFAR10):
        train_list = checked([f"data_batch_{number}" for number in range(1, 6)])
        test_list = checked(["test_batch"])
        meta = CIFAR10.meta | {"md5": checked(["batches.meta"])[0][1]}

    training, test = StandIn(tmp_path / "cifar10"), StandIn(tmp_path / "cifar10", train=False)
    assert (len(training), len(test)) == (120, 24)
    assert training.classes[3] == "cat"
    assert training[0][0].size == (32, 32)
    with (batches / "data_batch_1").open("rb") as file:
        batch = pickle.load(file, encoding="bytes")
    assert set(batch) == {b"batch_label", b"labels", b"data", b"filenames"}
    assert (batch[b"data"].shape, batch[b"data"].dtype) == ((24, 3072), np.uint8)


def test_image_folders_are_what_torchvision_reads_of_tiny_imagenet(draw, tmp_path):
    from torchvision.datasets import ImageFolder

    output = draw("tiny-imagenet-200", "--limit=400")
    root = tmp_path / "tiny-imagenet-200" / "tiny-imagenet-200"
    training, val = ImageFolder(root / "train"), ImageFolder(root / "val")
    assert (len(training), len(val)) == (400, 200) == (output["train_images"], output["test_images"])
    assert training.classes == val.classes == output["classes"]
    assert len(training.classes) == 200
    assert training[0][0].size == (64, 64)
    assert len((root / "wnids.txt").read_text().split()) == 200
    named = dict(line.split("\t")[:2] for line in (root / "val" / "val_annotations.txt").open())
    assert all(named[path.name] == path.parents[1].name for path in root.glob("val/*/images/*"))


def test_the_real_tiny_imagenet_is_sorted_into_folders_of_classes(prepare, tmp_path):
    from formats import tidy_tiny_imagenet

    val = tmp_path / "tiny-imagenet-200" / "val"
    (val / "images").mkdir(parents=True)
    for name in ("val_0.JPEG", "val_1.JPEG"):
        (val / "images" / name).write_bytes(b"")
    (val / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n")
    tidy_tiny_imagenet(tmp_path)
    assert (val / "n01" / "images" / "val_1.JPEG").exists()
    assert (val / "n02" / "images" / "val_0.JPEG").exists()
    assert not (val / "images").exists()


def test_the_digits_are_those_that_come_with_scikit_learn(draw):
    output = draw("digits")
    assert not output["synthetic"]
    assert (output["train_images"], output["test_images"]) == (1437, 360)


def test_a_small_network_learns_the_stand_ins_and_not_at_once(prepare):
    """The walk-through's CNN: far above chance, far below perfect, and mistaking what is alike."""
    from synthetic import Appearance, labels, pictures

    torch.manual_seed(0)
    appearance, sets = Appearance(10, group=2, seed=0), []
    for seed, count in ((1, 2000), (2, 500)):
        rng = np.random.default_rng(seed)
        classes = labels(count, 10, rng)
        drawn = (
            torch.from_numpy(pictures(classes, appearance, 32, rng)).permute(0, 3, 1, 2).float() / 127.5 - 1
        )
        sets.append((drawn, torch.from_numpy(classes)))
    convolutions = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU())
    dense = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    model = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *dense)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    (images, truth), (test, answers) = sets
    for _ in range(4):
        for chosen in torch.randperm(len(images)).split(64):
            loss = nn.functional.cross_entropy(model(images[chosen]), truth[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    guessed = model(test).argmax(1)
    accuracy = (guessed == answers).float().mean()
    assert 0.25 < accuracy < 0.9
    wrong = guessed != answers
    alike = (guessed // 2 == answers // 2) & wrong
    assert alike.sum() > wrong.sum() * 2 / 9  # by chance, one of nine wrong answers is the class's like
