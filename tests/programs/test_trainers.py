"""The trainers: what they say, that ranks share the data exactly, and that they fail with a clear word."""

import ast
import json
import re

import numpy as np
import pytest
import torch

from ..rows import slow
from .forked import TRAINERS
from .small_data import load_trainer, of_kind, rank_events, rank_lines, read_events, write_mnist

ddp = load_trainer("digits_ddp")


def test_a_trainer_says_how_to_start_it():
    programs = [path for path in TRAINERS.glob("*.py") if "# /// script" in path.read_text()]
    docstrings = {path.name: ast.get_docstring(ast.parse(path.read_text())) for path in programs}
    assert all(f"trainers/{name}" in text for name, text in docstrings.items()), docstrings.keys()


NO_CUDA = "torch finds no CUDA device: training on CPU with gloo"


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device here")
def test_a_pod_with_gpus_in_which_torch_finds_none_says_that_it_trains_on_the_cpu(monkeypatch, run_trainer):
    monkeypatch.setenv("TRAINYARD_GPUS", "1")
    start, *_ = run_trainer(ddp, "--epochs=1")
    assert any(NO_CUDA in line for line in run_trainer.lines)
    assert (start["device"], start["backend"]) == ("cpu", "gloo")


def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = ddp.read_digits()
    assert np.array_equal(images * 16, load_digits().images)
    assert np.array_equal(labels, load_digits().target)


def test_the_test_set_is_a_fifth_and_shares_no_image_with_the_training_set():
    images = np.arange(1797, dtype=np.float32).reshape(-1, 1, 1)
    training, test = ddp.split(images, np.zeros(1797, dtype=np.int64), 0)
    ids = [set(part.tensors[0].flatten().tolist()) for part in (training, test)]
    assert len(test) >= 0.2 * 1797
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 1797


def test_the_split_depends_on_the_seed_alone():
    arrays = ddp.read_digits()
    first, again, other_seed = (ddp.split(*arrays, seed)[1].tensors[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other_seed)


@pytest.mark.parametrize("name", ["digits_ddp", *slow("digits_single")])
def test_one_process_without_torchrun_reads_the_digits(name, run_trainer):
    events = run_trainer(load_trainer(name))
    assert not any(NO_CUDA in line for line in run_trainer.lines), "it has no GPUs"
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start"
    assert kinds[-2:] == ["eval", "end"]
    assert kinds.count("epoch") == 10
    assert all({"event", "time", "rank", "world_size"} <= set(event) for event in events)
    evaluation = events[-2]
    assert evaluation["accuracy"] >= 0.97
    if name == "digits_ddp":  # the pictures of its sample can be drawn, and fit on a line of a log
        assert len(evaluation["sample"]) == 16
        for digit in evaluation["sample"]:
            assert np.array(digit["pixels"]).shape == (8, 8)
            assert 0 <= np.min(digit["pixels"]) <= np.max(digit["pixels"]) <= 15
            assert {digit["label"], digit["prediction"]} <= set(range(10))
        assert len(json.dumps(evaluation)) < 8192


@pytest.mark.timeout(250)
def test_two_ranks_count_every_test_image_once():
    events = rank_events(2, "digits_ddp", "--epochs=1", "--log-every=1")
    (evaluation,) = of_kind(events, "eval")
    assert (evaluation["images"], evaluation["rank"]) == (360, 0)
    assert evaluation["accuracy"] == pytest.approx(evaluation["correct"] / 360, abs=1e-4)
    assert {event["rank"] for event in of_kind(events, "end")} == {0, 1}
    steps = sorted((event["step"], event["rank"]) for event in of_kind(events, "step"))
    assert steps == [(step, rank) for step in range(23) for rank in range(2)], "as many as one rank's"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_methods_for_slow_links_learn_with_fewer_exchanges():
    cases = {"ddp": (1, 40), "accumulate": (4, 10), "fp16": (1, 40), "powersgd": (1, 40), "diloco": (4, 10)}
    losses, exchanges = {}, {}
    for method, (batches, size) in cases.items():
        flags = [f"--method={method}", f"--batches={batches}", f"--batch-size={size}"]
        events = rank_events(2, "digits_slow_link", *flags)
        (losses[method],) = [event["loss"] for event in of_kind(events, "eval")]
        steps = [event for event in of_kind(events, "step") if event["rank"] == 0]
        exchanges[method] = sum(event["exchange"] for event in steps), len(steps)
    assert losses["accumulate"] == pytest.approx(losses["ddp"], rel=1e-3)
    assert losses["fp16"] == pytest.approx(losses["ddp"], rel=0.1)
    assert max(losses.values()) < 1.5, "2.3 is a guess"
    assert exchanges["accumulate"] == exchanges["diloco"] == (17, 71)
    assert exchanges["fp16"] == (17, 17)


@pytest.mark.parametrize("name", ["cifar10_ddp", "cifar10_fsdp", "digits_ddp", "tiny_imagenet_ddp"])
def test_lines_for_people_are_one_write_each_so_that_those_of_ranks_do_not_mix(name):
    # torchrun starts ranks by `python -u`, where print() writes its text and its newline apart.
    lines = (TRAINERS / f"{name}.py").read_text().splitlines()
    assert all("this pod has GPUs" in line for line in lines if "print(" in line)


def test_mnist_is_read_from_its_own_files(tmp_path):
    from torchvision.datasets import MNIST

    folder = write_mnist(tmp_path / "mnist")
    train, test = ddp.read_mnist(folder)
    for dataset, reference in ((train, MNIST(folder, train=True)), (test, MNIST(folder, train=False))):
        images, labels = dataset.tensors
        assert torch.equal(labels, reference.targets)
        assert torch.allclose(images, reference.data.float().unsqueeze(1) / 255, atol=1e-6)
    assert (len(train), len(test)) == (200, 50), "its own test set, none of which is trained on"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_one_epoch_trains_the_published_network_on_two_ranks_with_the_batch_of_each(tmp_path):
    data = write_mnist(tmp_path / "mnist", train=1000)
    flags = ["--dataset=mnist", f"--data-dir={data}", "--epochs=1", "--batch-size=16"]
    events = rank_events(2, "digits_ddp", *flags)
    (evaluation,) = of_kind(events, "eval")
    assert evaluation["images"] == 50
    assert evaluation["accuracy"] >= 0.9
    assert all(event["synthetic"] for event in events if event["event"] == "start")
    starts = of_kind(events, "start")
    assert {event["parameters"] for event in starts} == {1_199_882}
    assert {(event["batch_size"], event["steps"]) for event in starts} == {(16, 32)}, "500 images each"
    assert np.array(evaluation["sample"][0]["pixels"]).shape == (14, 14)
    assert len(json.dumps(evaluation)) < 16384


def test_mnist_that_is_not_whole_is_a_clear_error(tmp_path):
    folder = write_mnist(tmp_path / "mnist")
    next(folder.rglob("t10k-i*")).write_bytes(b"half")
    with pytest.raises(SystemExit, match="t10k-images.*cannot be read"):
        ddp.read_mnist(folder)
    (folder / "dataset.json").unlink()
    with pytest.raises(SystemExit, match=r'no dataset\.json.*kit\.prepare_dataset\("mnist"'):
        ddp.describe(folder)


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_a_simulated_accelerator_takes_time_and_changes_no_loss():
    flags = ["digits_ddp", "--epochs=1", "--log-every=1"]
    runs = {}
    for ranks, ms in ((1, 0), (1, 2), (2, 2)):
        lines = rank_lines(ranks, *flags, f"--simulated-ms-per-image={ms}")
        runs[ranks, ms] = read_events(lines)
        tested = r"Test set: Average loss: \d\.\d{4}, Accuracy: \d+/360 \(\d\d%\)"
        for published in (r"Train Epoch: 1 \[0/1437 \(0%\)\]\tLoss: \d\.\d{6}", tested):
            assert sum(re.fullmatch(published, line) is not None for line in lines) == ranks
    announcements = of_kind(runs[2, 2], "simulated_accelerator")
    assert {event["ms_per_image"] for event in announcements} == {2}
    assert {event["rank"] for event in announcements if event.get("cpu_ms", 0) > 0 and event["cores"]} == {
        0,
        1,
    }
    assert not of_kind(runs[1, 0], "simulated_accelerator")
    for ranks in (1, 2):  # 23 steps of 64 images in all, less those that the last one lacks
        assert min(event["seconds"] for event in of_kind(runs[ranks, 2], "epoch")) >= 1437 / ranks * 0.002
    assert [event["loss"] for event in of_kind(runs[1, 2], "step")] == pytest.approx(
        [event["loss"] for event in of_kind(runs[1, 0], "step")], abs=1e-4
    )
