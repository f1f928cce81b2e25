"""The trainer for CIFAR-10 and the test of its model: data, recipe, ranks, what they write on a volume."""

import ast
import base64
import io
import pickle
import re

import numpy as np
import pytest
import torch
from PIL import Image

from .forked import TRAINERS
from .small_data import (
    CLASSES,
    load_trainer,
    of_kind,
    rank_events,
    rank_lines,
    read_events,
    write_cifar10,
)

# What each rung of the ladder changes; all else that two neighbours have in common is the same text.
LESSONS = {
    ("digits_single", "digits_ddp"): {"emit", "split", "train_epoch", "evaluate"},
    ("digits_ddp", "cifar10_ddp"): {"make_model", "train_epoch", "evaluate"},
    ("cifar10_ddp", "cifar10_checkpoint"): set(),
    ("cifar10_ddp", "cifar10_fsdp"): set(),
    ("cifar10_ddp", "tiny_imagenet_ddp"): {"make_model"},
    ("digits_ddp", "digits_elastic"): {"make_model"},
    ("digits_elastic", "tiny_imagenet_elastic"): {"take_step", "train"},
}


ddp, test_job = load_trainer("cifar10_ddp"), load_trainer("evaluate")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set of 200 training images and 50 to test with."""
    return write_cifar10(tmp_path_factory.mktemp("data") / "cifar10")


def functions(name):
    tree = ast.parse((TRAINERS / f"{name}.py").read_text())
    return {
        node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("pair", LESSONS, ids=" to ".join)
def test_between_two_rungs_of_the_ladder_only_the_lesson_differs(pair):
    lower, upper = map(functions, pair)
    differ = {name for name in lower.keys() & upper.keys() if lower[name] != upper[name]}
    assert differ == LESSONS[pair] | {"parse_settings", "main"}


def test_images_are_read_in_order_with_their_colours(data):
    images, labels = ddp.read_images(data, train=True)
    assert images.dtype == torch.uint8
    assert images.shape == (200, 32, 32, 3)
    second = pickle.loads((data / "cifar-10-batches-py" / "data_batch_2").read_bytes())
    red, green, blue = (second[b"data"][7][plane * 1024 + 3 * 32 + 5] for plane in range(3))
    assert images[40 + 7, 3, 5].tolist() == [red, green, blue], "row 3, column 5"
    assert labels[40:80].tolist() == second[b"labels"]
    few, their_labels = ddp.read_images(data, train=True, limit=70)
    assert torch.equal(few, images[:70])
    assert torch.equal(their_labels, labels[:70])


def test_augmentation_moves_and_mirrors_whole_images_and_takes_nothing_from_others():
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    images = torch.stack(
        [torch.stack([rows, columns, torch.full_like(rows, n)], -1) for n in range(64)]
    ).byte()
    batch = ddp.augment(images, torch.arange(63, -1, -1), torch.Generator().manual_seed(1), pad=4, hole=0)
    mean, spread = (torch.tensor(value).view(1, 3, 1, 1) for value in (ddp.MEAN, ddp.SPREAD))
    back = (batch * spread + mean).round().int()
    assert torch.equal(back[:, 2, 0, 0], torch.arange(63, -1, -1, dtype=torch.int32))
    assert (back[:, 2] == back[:, 2, :1, :1]).all(), "every pixel comes from the same image"
    inner = back[:, :, 8:24, 8:24]
    assert set((inner[:, 0, 1] - inner[:, 0, 0]).unique().tolist()) == {1}, "rows keep their order"
    steps = (inner[:, 1, :, 1:] - inner[:, 1, :, :-1]).flatten(1)
    assert (steps == steps[:, :1]).all(), "an image is mirrored as a whole"
    assert 16 < (steps[:, 0] == -1).sum() < 48, "about half of them"
    assert set((inner[:, 0, 0, 0] - 8).tolist()) == set(range(-4, 5))


def test_a_hole_blanks_one_square_in_each_image():
    images = torch.full((16, 32, 32, 3), 255, dtype=torch.uint8)
    batch = ddp.augment(images, torch.arange(16), torch.Generator().manual_seed(1), pad=0, hole=8)
    assert ((batch == 0).sum(dim=(2, 3)) == 64).all()
    assert len({tuple(image[0].nonzero()[0].tolist()) for image in batch == 0}) > 8


def test_the_rate_rises_for_a_fifth_and_ends_near_zero():
    rates = [ddp.one_cycle(step, 100) for step in range(100)]
    assert max(rates) == rates[19] == 1
    assert rates == sorted(rates[:20]) + sorted(rates[20:], reverse=True)
    assert 0 < rates[-1] < 0.02
    assert [ddp.one_cycle(0, 1), ddp.one_cycle(0, 2)] == [1, 1]


def test_one_rank_learns_saves_its_model_and_the_test_job_finds_the_same_accuracy(
    data, run_trainer, tmp_path
):
    saved = tmp_path / "models" / "cifar10.pt"
    flags = ["--data-dir", data, "--epochs", 4, "--batch-size", 20, "--model-file", saved]
    events = run_trainer(ddp, *flags)
    assert [event["event"] for event in events if event["event"] != "step"] == [
        "start",
        *["epoch"] * 4,
        "memory",
        "eval",
        "end",
    ]
    (start,), (result,) = of_kind(events, "start"), of_kind(events, "eval")
    assert start["synthetic"] is result["synthetic"] is True
    assert (start["train_images"], start["test_images"], start["steps"]) == (200, 50, 40)
    assert result["accuracy"] >= 0.8
    assert result["images"] == 50
    assert [path.name for path in saved.parent.iterdir()] == ["cifar10.pt"], "nothing half-written is left"

    tested = run_trainer(test_job, "--data-dir", data, "--model-file", saved, "--mistakes", 3)
    assert [event["event"] for event in tested] == ["start", "eval", "end"]
    table = tested[1]
    assert {key: table[key] for key in ("accuracy", "loss", "images")} == pytest.approx(
        {key: result[key] for key in ("accuracy", "loss", "images")}, abs=1e-4
    )


def test_the_same_seed_gives_the_same_losses_and_another_gives_others(data, run_trainer):
    def losses(seed):
        events = run_trainer(
            ddp, "--data-dir", data, "--epochs", 1, "--batch-size", 20, "--log-every", 1, "--seed", seed
        )
        return [event["loss"] for event in of_kind(events, "step")]

    first = losses(0)
    assert len(first) == 10
    assert losses(0) == first
    assert losses(1) != first


PLAIN = ["--no-bf16", "--no-channels-last", "--no-compile"]


PARAMETERS = {"small": 357_034, "workshop": 3_229_770, "resnet9": 6_573_120}


@pytest.mark.parametrize(("model", "off"), [*((model, []) for model in ddp.RECIPES), ("small", PLAIN)])
def test_every_model_is_that_of_the_text_and_trains_also_without_what_makes_it_fast(
    model, off, data, run_trainer
):
    events = run_trainer(
        ddp, "--data-dir", data, "--model", model, "--epochs", 1, "--limit", 20, "--batch-size", 10, *off
    )
    assert of_kind(events, "end")[0]["steps"] == 2
    assert all(0 < event["loss"] < 20 for event in of_kind(events, "epoch"))
    (start,) = of_kind(events, "start")
    assert start["precision"] in (["fp32"] if off else ["bf16", "fp32"])
    assert sum(weight.numel() for weight in ddp.make_model(model, 10).parameters()) == PARAMETERS[model]


@pytest.mark.timeout(120)
def test_two_ranks_take_half_the_steps_each_and_count_every_test_image_once(data, run_trainer, tmp_path):
    saved = tmp_path / "model.pt"
    flags = ["--data-dir", str(data), "--epochs", "2", "--batch-size", "20", "--log-every", "1"]
    lines = rank_lines(2, "cifar10_ddp", *flags, "--model-file", str(saved))
    events = read_events(lines)
    published = ("reading .*/cifar-10-batches-py/", r"\[1,     5\] loss: \d\.\d{3}", "Finished Training")
    for words in (*published, f"saving model: {saved}"):
        assert len([line for line in lines if re.fullmatch(words, line)]) == 2 - words.startswith("saving")
    steps = {(event["rank"], event["steps"]) for event in of_kind(events, "epoch")}
    assert steps == {(0, 5), (1, 5)}, "not ten"
    assert {event["lr"] for event in of_kind(events, "start")} == {round(0.1 * 20 / 128 * 2, 5)}, (
        "and a rate for two"
    )
    (result,) = of_kind(events, "eval")
    assert result["images"] == 50
    assert result["rank"] == 0
    assert torch.load(saved, weights_only=True)["classes"] == CLASSES
    flags = ["--data-dir", str(data), "--model-file", str(saved)]
    events = rank_events(2, "evaluate", *flags)
    (together,), (alone,) = of_kind(events, "eval"), of_kind(run_trainer(test_job, *flags), "eval")
    shares = sorted((share["rank"], share["images"]) for share in of_kind(events, "share"))
    assert shares == [(0, 25), (1, 25)]
    assert together.pop("loss") == pytest.approx(alone.pop("loss"), abs=1e-4)
    assert {**together, "time": 0} == {**alone, "time": 0, "world_size": 2}


def test_counting_by_hand_gives_the_same():
    truth = torch.tensor([0, 0, 1, 2, 2, 2])
    guesses = torch.tensor([0, 1, 1, 2, 0, 2])
    answers = torch.nn.functional.one_hot(guesses, 4).float() * torch.tensor([9.0, 8, 7, 6, 5, 4]).unsqueeze(
        1
    )
    counts = test_job.count(answers, truth, ["a", "b", "c", "d"])
    assert counts["confusion"] == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0]]
    assert counts["per_class"] == {"a": 0.5, "b": 1.0, "c": 0.6667}, "no image of d was asked about"
    assert (counts["correct"], counts["images"], counts["accuracy"]) == (4, 6, round(4 / 6, 5))
    pixels = torch.arange(6 * 32 * 32 * 3).remainder(256).byte().view(6, 32, 32, 3)
    first, second = test_job.worst_mistakes(answers, truth, pixels, ["a", "b", "c", "d"], 5)
    assert (first["image"], first["label"], first["prediction"]) == (1, "a", "b"), "the surest first"
    assert (second["image"], second["label"], second["prediction"]) == (4, "c", "a")
    drawn = Image.open(io.BytesIO(base64.b64decode(first["png"])))
    assert np.array_equal(np.asarray(drawn), pixels[1].numpy())


def test_the_test_job_prints_accuracies_in_the_words_of_the_eks_workshop(capsys):
    per_class = {"airplane": 0.775, "cat": 0.533}
    test_job.print_accuracy({"accuracy": 0.742, "images": 10000, "per_class": per_class})
    assert capsys.readouterr().out.splitlines() == [
        "Accuracy of the network on the 10000 test images: 74 %",
        "Accuracy for class: plane is 77.5 %",
        "Accuracy for class: cat   is 53.3 %",
    ]


@pytest.mark.parametrize(
    ("module", "flags", "words"),
    [
        (ddp, ["--data-dir", "{tmp}/cifar10"], r'no dataset.json.*kit\.prepare_dataset\("cifar10"'),
        (ddp, ["--data-dir", "{torn}"], "test_batch cannot be read.*prepare the dataset again"),
        (
            ddp,
            ["--data-dir", "{data}", "--limit=10", "--epochs=1", "--model-file=/proc/m.pt"],
            "cannot be written",
        ),
        (
            test_job,
            ["--data-dir", "{data}", "--model-file", "{tmp}/m.pt"],
            "does not exist; notebook 06",
        ),
        (
            test_job,
            ["--data-dir", "{data}", "--model-file", "{data}/dataset.json"],
            "not a model saved by a trainer",
        ),
    ],
)
def test_missing_and_broken_files_are_named_with_a_fix(module, flags, words, data, run_trainer, tmp_path):
    torn = write_cifar10(tmp_path / "torn")
    (torn / "cifar-10-batches-py" / "test_batch").write_bytes(b"half")
    places = {"tmp": tmp_path, "data": data, "torn": torn}
    with pytest.raises(SystemExit, match=words):
        run_trainer(module, *[flag.format(**places) for flag in flags])


def test_a_flag_that_makes_no_sense_is_refused_before_anything_is_read(run_trainer, capsys):
    with pytest.raises(SystemExit):
        run_trainer(ddp, "--epochs", 0)
    assert "argument --epochs: 0 is not 1 or more" in capsys.readouterr().err


def test_an_interrupted_save_leaves_the_older_model(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    ddp.save(path, {"epochs": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ddp.os, "fsync", full)
    with pytest.raises(SystemExit, match="No space left on device.*is the volume full"):
        ddp.save(path, {"epochs": 2})
    assert torch.load(path) == {"epochs": 1}
    assert list(tmp_path.iterdir()) == [path]
