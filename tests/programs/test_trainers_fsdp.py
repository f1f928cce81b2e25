"""The trainer that splits its model over the ranks: the weights of DDP, less memory, and checkpoints."""

import pytest
import torch

from .small_data import load_trainer, of_kind, rank_events, write_cifar10

MEMORY = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set of 200 training images and 50 to test with."""
    return write_cifar10(tmp_path_factory.mktemp("data") / "cifar10")


def train(ranks, name, *flags):
    """Run a trainer on some ranks; return the events of all."""
    flags = ["--batch-size=20", "--log-every=1", "--no-bf16", "--no-channels-last", *map(str, flags)]
    return rank_events(ranks, name, *flags)


def weights(path):
    return torch.load(path, weights_only=True)["weights"]


def losses(events):
    return {(event["rank"], event["step"]): event["loss"] for event in of_kind(events, "step")}


@pytest.fixture(scope="module")
def ddp(data, tmp_path_factory):
    """Two epochs of DDP on two ranks: its events, and its model."""
    saved = tmp_path_factory.mktemp("ddp") / "model.pt"
    return train(2, "cifar10_ddp", f"--data-dir={data}", "--epochs=2", f"--model-file={saved}"), saved


@pytest.fixture(scope="module")
def fsdp(data, tmp_path_factory):
    """The same with a split model, which also saves checkpoints: its events, its model, the folder."""
    folder = tmp_path_factory.mktemp("fsdp")
    saved, flags = folder / "model.pt", ["--epochs=2", f"--checkpoint-dir={folder / 'checkpoints'}"]
    return train(2, "cifar10_fsdp", f"--data-dir={data}", f"--model-file={saved}", *flags), saved, folder


@pytest.mark.timeout(300)
def test_after_the_same_steps_its_weights_and_its_losses_are_those_of_ddp(ddp, fsdp):
    reference, sharded = weights(ddp[1]), weights(fsdp[1])
    assert list(sharded) == list(reference)
    for name, tensor in reference.items():
        assert torch.allclose(sharded[name].double(), tensor.double(), rtol=1e-4, atol=1e-5), name
    steps = losses(ddp[0])
    assert len(steps) == 2 * 10
    assert losses(fsdp[0]) == pytest.approx(steps, abs=1e-4)
    (expected,), (evaluation,) = (of_kind(events, "eval") for events in (ddp[0], fsdp[0]))
    assert evaluation["images"] == expected["images"] == 50
    assert evaluation["accuracy"] == expected["accuracy"]


@pytest.mark.timeout(300)
def test_the_ranks_parts_add_up_to_what_each_rank_of_ddp_holds(ddp, fsdp):
    whole = of_kind(ddp[0], "memory")[0]
    parts = of_kind(fsdp[0], "memory")
    assert [whole[name] for name in MEMORY] == [357_034 * 4] * 3
    for name in MEMORY:
        assert sum(part[name] for part in parts) == whole[name]
        assert max(part[name] for part in parts) < 0.55 * whole[name]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_of_two_ranks_resumes_on_two_and_on_one(data, fsdp, tmp_path):
    _, saved, folder = fsdp
    checkpoints = folder / "checkpoints"
    (checkpoints / "epoch-0002" / ".metadata").unlink()  # as if it had been killed while it saved
    flags = [f"--data-dir={data}", "--epochs=2", f"--checkpoint-dir={checkpoints}"]
    again = tmp_path / "again.pt"
    events = train(2, "cifar10_fsdp", *flags, f"--model-file={again}")
    assert [event["epoch"] for event in of_kind(events, "resume")] == [1, 1]
    assert {event["epoch"] for event in of_kind(events, "step")} == {1}
    reference = weights(saved)
    assert all(torch.equal(tensor, reference[name]) for name, tensor in weights(again).items())
    (checkpoints / "epoch-0002" / ".metadata").unlink()
    events = train(1, "cifar10_fsdp", *flags)
    (resumed,), (start,) = of_kind(events, "resume"), of_kind(events, "start")
    assert (resumed["epoch"], resumed["ranks_before"], start["lr"]) == (1, 2, round(0.1 * 20 / 128, 5))


def test_a_checkpoint_of_other_settings_ends_it_with_a_word(data, run_trainer, tmp_path):
    trainer, flags = load_trainer("cifar10_fsdp"), ["--data-dir", data, "--checkpoint-dir", tmp_path]
    run_trainer(trainer, *flags, "--epochs", 1)
    with pytest.raises(SystemExit, match="belongs to another run.*'seed': 0"):
        run_trainer(trainer, *flags, "--epochs", 1, "--seed", 1)


def test_one_rank_alone_learns_and_the_test_job_reads_its_model(data, run_trainer, tmp_path):
    flags = ["--data-dir", data, "--model-file", tmp_path / "model.pt"]
    (result,) = of_kind(
        run_trainer(load_trainer("cifar10_fsdp"), *flags, "--epochs", 4, "--batch-size", 20), "eval"
    )
    (tested,) = of_kind(run_trainer(load_trainer("evaluate"), *flags), "eval")
    assert tested["accuracy"] == result["accuracy"] >= 0.7
