"""The language model's trainer: the same losses in each way to train, memory by rank, and a resume."""

import pytest

from .small_data import load_trainer, of_kind, rank_events

SMALL = ["--layers=2", "--width=32", "--context=16", "--batch-size=8", "--steps=6", "--log-every=1"]


def train(ranks, *flags):
    """Train on some ranks; return the events of all."""
    return rank_events(ranks, "gpt", *SMALL, *flags)


def losses(events):
    """Return the loss of each step: the mean of the ranks'."""
    by_step = {}
    for event in of_kind(events, "step"):
        by_step.setdefault(event["step"], []).append(event["loss"])
    return {step: sum(values) / len(values) for step, values in by_step.items()}


def norms(events):
    """Return the gradient's norm in each step, which all ranks must agree on."""
    by_step = {event["step"]: event["norm"] for event in of_kind(events, "step")}
    assert all(event["norm"] == by_step[event["step"]] for event in of_kind(events, "step"))
    return by_step


@pytest.fixture(scope="module")
def single():
    """Six steps of one process, with a sample."""
    return train(1, "--sample=200")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sample_is_written_before_and_after_and_the_loss_falls(single):
    (sample,) = of_kind(single, "sample")
    assert len(sample["before"]) > 150
    assert sample["before"] != sample["after"]
    assert losses(single)[5] < losses(single)[1] < 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--parallel=ddp", "--accumulate=2"), marks=pytest.mark.slow),
        pytest.param(("--parallel=ddp", "--accumulate=4", "--sync-always"), marks=pytest.mark.slow),
        pytest.param(("--parallel=fsdp", "--accumulate=2"), marks=pytest.mark.slow),
        pytest.param(("--parallel=fsdp", "--recompute"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_each_way_to_train_on_two_ranks_has_the_losses_of_one_process(flags, single):
    events = train(2, *flags)
    assert losses(events) == pytest.approx(losses(single), abs=2e-3)
    assert norms(events) == pytest.approx(norms(single), rel=1e-2)  # also of parts


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_rank_resumes_the_sharded_checkpoint_of_two(single, tmp_path):
    flags = ["--parallel=fsdp", f"--checkpoint-dir={tmp_path / 'checkpoint'}"]
    before = train(2, *flags, "--stop-after=3", "--save-every=2")
    saves = of_kind(before, "checkpoint")
    assert sorted({(event["step"], event["background"]) for event in saves}) == [(2, True), (3, False)]
    assert (tmp_path / "checkpoint" / "step-2" / ".metadata").exists()
    (tmp_path / "checkpoint" / "step-4").mkdir()  # begun, and never complete
    after = train(1, *flags)
    assert [event["step"] for event in of_kind(after, "resume")] == [3]
    losses_by_step = losses(before) | losses(after)
    expected = losses(single)
    assert losses_by_step.keys() == expected.keys()  # also the step that was resumed
    assert losses_by_step == pytest.approx({step: expected[step] for step in losses_by_step}, abs=2e-3)
    (whole,) = of_kind(single, "memory")
    for kind in ("parameters", "gradients", "optimizer"):
        parts = [event[f"{kind}_bytes"] for event in of_kind(before, "memory")]
        assert sum(parts) == pytest.approx(whole[f"{kind}_bytes"], rel=0.01)
        assert max(parts) < 0.55 * whole[f"{kind}_bytes"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_low_precision_and_activation_checkpointing_keep_less(single):
    (plain,) = of_kind(single, "memory")
    (low,) = of_kind(train(1, "--precision=bf16"), "memory")
    (again,) = of_kind(train(1, "--recompute"), "memory")
    assert low["activations_bytes"] < 0.85 * plain["activations_bytes"]
    assert again["activations_bytes"] < 0.3 * plain["activations_bytes"]
    assert low["parameters_bytes"] == plain["parameters_bytes"]


def test_steps_have_the_same_sequences_for_any_number_of_ranks(monkeypatch):
    gpt = load_trainer("gpt")
    text, settings = gpt.read_text(), gpt.parse_settings(["--context=8", "--batch-size=4"])
    assert int(text.max()) < 128
    assert b"def " in bytes(text[:100_000].tolist())
    monkeypatch.setattr(gpt.dist, "get_world_size", lambda: 2)
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr(gpt.dist, "get_rank", lambda rank=rank: rank)
        shares += gpt.read_batch(text, 5, settings).tolist()
    monkeypatch.setattr(gpt.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(gpt.dist, "get_rank", lambda: 0)
    assert sorted(shares) == sorted(gpt.read_batch(text, 5, settings).tolist())
