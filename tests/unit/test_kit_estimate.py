"""``kit.estimate`` against figures that papers have published."""

import pytest

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.metrics.estimate import DEVICES, activation_bytes, mfu

GPT3 = {"layers": 96, "width": 12288, "heads": 96, "context": 2048, "vocabulary": 51200}
MT_NLG = {"layers": 105, "width": 20480, "heads": 128, "context": 2048, "vocabulary": 51200}
PALM = {"layers": 118, "width": 48 * 256, "context": 2048, "parameters": 540.35e9}  # 48 heads of 256 query


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_divides_memory_as_its_paper_says(stage, gigabytes):
    """Rajbhandari et al., ZeRO, 2020, figure 1: 7.5 billion parameters, 64 ranks, mixed precision, Adam."""
    memory = kit.estimate(7.5e9, ranks=64, sharded=stage).memory
    assert sum(memory.values()) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_palm_reached_46_percent():
    """Chowdhery et al., PaLM, 2022, section 4.1, appendix B: 6144 TPU v4, 238,300 tokens a second, 46.2 %."""
    flops = 6 * PALM["parameters"] + 12 * PALM["layers"] * PALM["width"] * PALM["context"]
    measured = mfu(238_300, flops=flops, devices=6144, tflops=DEVICES["TPU v4"].tflops)
    assert measured == pytest.approx(0.462, abs=0.001)


def test_megatron_would_train_gpt_3_in_34_days():
    """Narayanan et al., Megatron-LM, 2021, section 5.1: 300 billion tokens, 1024 A100 of 140 TFLOP/s."""
    days = kit.estimate(
        GPT3 | {"recompute": 1}, ranks=1024, device="A100", utilisation=140 / 312, link=1e6
    ).days(300e9)
    assert days == pytest.approx(34, rel=0.05)


@pytest.mark.parametrize(("tflops", "device", "share"), [(163, "A100", 0.52), (400, "H100", 0.41)])
def test_peaks_are_those_of_published_shares(tflops, device, share):
    """Megatron-LM, table 1, 3072 GPUs; Grattafiori et al., Llama 3, 2024, table 4, 16,384 GPUs."""
    assert tflops / DEVICES[device].tflops == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("shape", "saved"), [(GPT3, 0.70), (MT_NLG, 0.65)])
def test_attention_is_the_part_of_the_activations_that_is_published(shape, saved):
    """Korthikanti et al., 2022, section 5: recomputing attention saves 70 % of GPT-3's, 65 % of MT-NLG's."""
    tokens = shape["context"]
    whole = activation_bytes(shape, tokens=tokens, precision=2)
    attention = shape["layers"] * tokens * 5 * shape["heads"] * shape["context"]
    assert attention / whole == pytest.approx(saved, abs=0.006)


def test_it_predicts_what_notebook_14_measures_within_15_percent():
    """One process of notebook 14: MB that `trainers/gpt.py` counted, whose layers have no dropout."""
    shape = {"layers": 4, "width": 128, "heads": 4, "context": 64, "vocabulary": 128, "dropout": 0}
    predicted = kit.estimate(shape, device="cpu", tokens=32 * 64).memory
    measured = {"parameters": 3.30, "gradients": 3.30, "optimizer": 6.61, "activations": 78.82}
    assert {part: size / 1e6 for part, size in predicted.items()} == pytest.approx(measured, rel=0.15)


def test_a_ring_sends_less_than_twice_the_gradients():
    """Patarasuk and Yuan, 2009; ZeRO's section 7.2.2: a communication volume of 1.5 times that of DDP."""
    exchange = {
        stage: kit.estimate(1e9, ranks=4, link=16, sharded=stage).seconds["exchange"] for stage in (0, 3)
    }
    assert exchange[0] == pytest.approx(2 * 3 / 4 * 2e9 / 2e9)
    assert exchange[3] == pytest.approx(1.5 * exchange[0])
    assert kit.estimate(1e9).seconds["exchange"] == 0


def test_a_slow_link_lowers_the_mfu_and_raises_the_price():
    fast, slow = (kit.estimate(7e9, ranks=8, link=gigabit) for gigabit in (3600, 10))
    assert fast.mfu == pytest.approx(0.5)  # all of the exchange is hidden behind the backward pass
    assert slow.mfu < 0.1
    assert slow.cost(1e9, dollars_an_hour=2) / fast.cost(1e9, dollars_an_hour=2) == pytest.approx(
        fast.mfu / slow.mfu
    )


def test_an_estimate_says_that_a_model_does_not_fit():
    assert "It does not fit in 80 GB" in repr(kit.estimate(70e9, ranks=8))
    assert "does not fit" not in kit.estimate(7e9, ranks=8, sharded=3)._repr_html_()


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        (7e9, {"device": "H900"}, "T4, L4, V100"),
        (7e9, {"sharded": 4}, "sharded from 0 to 3"),
        (0, {}, "above 0"),
        ({"layers": 2}, {}, "width, heads"),
    ],
)
def test_a_figure_that_cannot_be_is_named(model, arguments, words):
    with pytest.raises(BadInput, match=words):
        kit.estimate(model, **arguments)
