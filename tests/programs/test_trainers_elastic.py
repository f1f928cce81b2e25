"""The elastic trainers: each sample once an epoch and the same loss, whoever comes and goes."""

import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .forked import TRAINERS
from .small_data import load_trainer, of_kind, write_folders

EXACT = 1e-9
IMAGES = 1437  # of the digits to train on


digits, tiny = load_trainer("digits_elastic"), load_trainer("tiny_imagenet_elastic")


def steps_by_number(events: list[dict]) -> dict[int, tuple[float, int]]:
    """Return loss and number of samples of each step; who reports one twice must report the same."""
    steps: dict[int, tuple[float, int]] = {}
    for event in of_kind(events, "step"):
        loss, samples = steps.setdefault(event["step"], (event["loss"], event["samples"]))
        assert abs(loss - event["loss"]) <= EXACT, f"step {event['step']} had two results"
        assert samples == event["samples"]
    return steps


# Accounting

worlds = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 7), st.booleans()), max_size=30)


@settings(deadline=None, max_examples=200)
@given(images=st.integers(1, 97), batch=st.integers(1, 40), seed=st.integers(0, 9), worlds=worlds)
def test_each_sample_counts_once_an_epoch_for_any_sequence_of_world_sizes(images, batch, seed, worlds):
    """A world lasts for some steps; then a rank is lost, in the middle of a step or at its end."""
    per_epoch, epochs = -(-images // batch), 2
    counted = [[] for _ in range(epochs)]
    sequence = iter(worlds)
    size, left, torn = next(sequence, (1, 10**6, False))
    step = 0
    while step < epochs * per_epoch:
        epoch, index = divmod(step, per_epoch)
        order = digits.epoch_order(epoch, images=images, seed=seed)
        shares = [
            digits.rank_slice(order, index, batch=batch, rank=rank, world_size=size) for rank in range(size)
        ]
        lengths = [len(share) for share in shares]
        assert max(lengths) - min(lengths) <= 1, "no rank has more to do than another"
        if left == 0:
            if not torn:  # the step is complete, and the next world takes the next one
                counted[epoch] += torch.cat(shares).tolist()
                step += 1
            size, left, torn = next(sequence, (1, 10**6, False))
            continue
        counted[epoch] += torch.cat(shares).tolist()
        step, left = step + 1, left - 1
    assert [sorted(epoch) for epoch in counted] == [list(range(images))] * epochs
    if images > 10:
        assert counted[0] != counted[1], "another order in each epoch"


@settings(deadline=None, max_examples=50)
@given(images=st.integers(1, 60), cut=st.integers(0, 60), epoch=st.integers(0, 5))
def test_how_an_image_is_cropped_does_not_depend_on_the_rank_that_does_it(images, cut, epoch):
    pixels = torch.randint(0, 256, (images, 8, 8, 3), dtype=torch.uint8)
    shifts = tiny.draw_augmentation(epoch, images=images, seed=3)
    chosen = torch.randperm(images)
    whole = tiny.augment(pixels, chosen, shifts)
    parts = [tiny.augment(pixels, part, shifts) for part in (chosen[:cut], chosen[cut:])]
    assert torch.equal(whole, torch.cat(parts))
    if images > 10:
        assert not torch.equal(shifts, tiny.draw_augmentation(epoch + 1, images=images, seed=3))


# Trainers alone


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16])
def test_gradients_of_two_types_are_averaged_in_one_step(first):
    worker, kinds = digits.elastic.Worker(), (first, torch.float64)
    worker.world_size = 2  # in a group of one process, where a sum is what that one has
    model = torch.nn.ModuleList(torch.nn.Linear(1, 1, dtype=kind) for kind in kinds)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 6)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        totals = worker.average_gradients(model, loss=torch.tensor(9.0), samples=3)
    finally:
        torch.distributed.destroy_process_group()
    assert (totals.loss, totals.samples) == (3.0, 3)
    assert {parameter.grad.item() for parameter in model.parameters()} == {2.0}


def test_the_trainer_learns_alone_and_goes_on_from_where_it_was_killed(run_trainer, tmp_path, monkeypatch):
    flags = ["--float64", "--epochs=4", "--log-every=1"]
    whole = run_trainer(digits, *flags, "--epochs=4")
    assert of_kind(whole, "eval")[0]["accuracy"] >= 0.9
    assert [event["event"] for event in whole if event["event"] != "step"] == [
        *("rendezvous", "start"),
        *("epoch",) * 4,
        *("eval", "end"),
    ]
    flags += [f"--checkpoint-dir={tmp_path / 'checkpoints'}", "--checkpoint-every=10"]
    original, steps_taken = digits.take_step, []

    def interrupted(*arguments):
        steps_taken.append(1)
        if len(steps_taken) == 38:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(digits, "take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_trainer(digits, *flags)
    for thread in threading.enumerate():
        if thread.name == "checkpoint-writer":  # at a real end it would be whole, or not there
            thread.join()
    rest = run_trainer(digits, *flags)
    (resumed,) = of_kind(rest, "resume")
    assert (resumed["epoch"], resumed["next_step"], resumed["broken"]) == (1, 30, []), (
        "in the middle of an epoch"
    )
    reference = steps_by_number(whole)
    assert {step: reference[step] for step in range(30, 92)} == steps_by_number(rest)


def test_a_checkpoint_of_other_settings_ends_the_trainer_with_a_status(run_trainer, tmp_path, capsys):
    flags = ["--epochs=1", f"--checkpoint-dir={tmp_path}"]
    run_trainer(digits, *flags)
    with pytest.raises(SystemExit) as ended:
        run_trainer(digits, *flags, "--lr=0.5")
    assert ended.value.code == 78
    assert "lr 0.004, not 0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_the_large_one_learns_and_the_test_job_reads_its_model(run_trainer, tmp_path):
    data, saved = write_folders(tmp_path), tmp_path / "model.pt"
    flags = ["--data-dir", data, "--epochs", 2, "--global-batch-size", 8, "--model-file", saved]
    (result,) = of_kind(run_trainer(tiny, *flags), "eval")
    assert result["images"] == 20
    assert result["accuracy"] >= 0.7
    (tested,) = of_kind(run_trainer(load_trainer("evaluate"), *flags[:2], *flags[-2:]), "eval")
    assert tested["accuracy"] == result["accuracy"]


# Ranks that come and go


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_under_stock_torchrun_all_start_again_from_the_checkpoint(run_trainer, tmp_path):
    same = ["--float64", "--epochs=6", "--log-every=1"]
    reference = steps_by_number(run_trainer(digits, *same))
    same += [f"--checkpoint-dir={tmp_path / 'checkpoints'}", "--checkpoint-every=7", "--step-seconds=0.02"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    # Or the workers that are started again may find, in the store of torchrun, the addresses of those before.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*torchrun, str(TRAINERS / "digits_elastic.py"), *same],
        env=os.environ | own_store,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        lines, killed = [], False
        for line in process.stdout:
            lines.append(json.loads(line))
            if not killed and lines[-1]["rank"] == 1 and lines[-1].get("step", 0) >= 50:
                killed = True
                os.kill(of_kind([event for event in lines if event["rank"] == 1], "start")[-1]["pid"], 9)
    assert process.returncode == 0
    assert of_kind(lines, "resume")[0]["next_step"] >= 42
    steps = steps_by_number(lines)
    assert steps.keys() == reference.keys()
    assert max(abs(steps[step][0] - reference[step][0]) for step in steps) <= EXACT
    assert sum(samples for _, samples in steps.values()) == 6 * IMAGES
