"""Two axes: on each mesh the losses of one rank, a part of the weights, and the bytes that formulas say."""

import pytest

from .small_data import load_trainer, of_kind, rank_events

WIDTH, HIDDEN, BLOCKS, CLASSES = 64, 256, 4, 10
UP, DOWN, HEAD = (WIDTH + 1) * HIDDEN, (HIDDEN + 1) * WIDTH, (WIDTH + 1) * CLASSES
ALL = BLOCKS * (UP + DOWN) + HEAD
SHARE = 4 * 64 * WIDTH  # bytes of a block's result for all 64 images


def losses(events):
    """Return the loss of each step, which all ranks log alike."""
    steps = {(event["step"], round(event["loss"], 4)) for event in of_kind(events, "step")}
    assert len(steps) == 4, steps
    return [loss for _, loss in sorted(steps)]


@pytest.fixture(scope="module")
def single():
    return rank_events(1, "axes", "--steps=4")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ranks", "flags", "parameters", "gradients"),
    [
        (2, (), [ALL, ALL], [4 * ALL] * 2),
        (2, ("--tensor=2",), [BLOCKS * (UP // 2 + WIDTH * HIDDEN // 2 + WIDTH) + HEAD] * 2, [0, 0]),
        (2, ("--stages=2",), [2 * (UP + DOWN), 2 * (UP + DOWN) + HEAD], [0, 0]),
        pytest.param(
            4,
            ("--stages=2", "--micro-batches=2"),
            [2 * (UP + DOWN), 2 * (UP + DOWN) + HEAD] * 2,
            [4 * 2 * (UP + DOWN), 4 * (2 * (UP + DOWN) + HEAD)] * 2,
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value, tuple) else None,
)
def test_a_mesh_has_the_losses_of_one_rank_and_each_rank_its_part(
    ranks, flags, parameters, gradients, single
):
    events = rank_events(ranks, "axes", "--steps=4", *flags)
    assert losses(events) == pytest.approx(losses(single), abs=2e-3)
    by_rank = sorted(of_kind(events, "start"), key=lambda event: event["rank"])
    assert [event["held"] for event in by_rank] == parameters
    last = sorted(of_kind(events, "step"), key=lambda event: (event["step"], event["rank"]))[-ranks:]
    assert [event["gradients_bytes"] for event in last] == gradients
    sends = "--stages=2" in flags or "--tensor=2" in flags
    assert all((event["activations_bytes"] >= SHARE / ranks) == sends for event in last), last


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tensor=2", "--stages=2"], "choose --tensor or --stages, not both"),
        (["--tensor=3"], "2 ranks: --tensor or --stages must divide them evenly"),
        (["--stages=4"], "2 ranks: --tensor or --stages must divide them evenly"),
    ],
)
def test_ranks_that_cannot_be_divided_are_refused_before_they_meet(flags, words, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        load_trainer("axes").parse_settings(flags)
    assert words in capsys.readouterr().err
