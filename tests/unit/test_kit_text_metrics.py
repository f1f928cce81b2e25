"""Numbers of programs that print no JSON: by the word loss, by a regular expression, from TensorBoard."""

import pytest

from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from kitlib.metrics.tensorboard import read_tensorboard
from kitlib.metrics.text import parse_text


def logs(*texts):
    return {0: [Line(f"2026-01-01T00:00:{second:02}.123456789Z", text) for second, text in enumerate(texts)]}


@pytest.mark.parametrize(
    "text",
    [
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 0.25",
        "loss=0.25",
        "step 3 | train_loss 2.5e-1 | lr 0.1",
        "[2020-04-14 02:46:28,535] [INFO] Loss is 0.25",
        "{'loss': 0.25, 'epoch': 1}",
        "epoch 1 train loss: .25 val loss: 0.9",
    ],
)
def test_a_loss_is_found_as_most_programs_print_it(text):
    (event,) = parse_text(logs("begin", text))
    assert (event.event, event.fields, event.rank) == ("step", {"step": 0, "loss": 0.25}, 0)


@pytest.mark.parametrize(
    "text", ["lossless: 3", "Test set: Average loss: 0.03", "val_loss: 0.3", "the loss fell"]
)
def test_other_lines_with_that_word_are_no_steps(text):
    assert parse_text(logs(text)) == []


def test_json_lines_come_before_text_and_a_pattern_before_both():
    both = logs(
        '{"event": "step", "time": 1.0, "rank": 0, "world_size": 1, "step": 7, "loss": 1.0}', "loss 2.0"
    )
    assert [event.fields["loss"] for event in parse_text(both)] == [1.0]
    (event,) = parse_text(both, r"^(?P<name>loss) (?P<loss>\S+)")
    assert event.fields == {"step": 0, "name": "loss", "loss": 2.0}


def test_a_pattern_may_name_the_step():
    found = parse_text(logs("it 10: 0.5", "it 20: 0.25"), r"it (?P<step>\d+): (?P<loss>\S+)")
    assert [(event.fields["step"], event.fields["loss"]) for event in found] == [(10, 0.5), (20, 0.25)]
    assert found[0].time < found[1].time


@pytest.mark.parametrize("pattern", ["loss (", r"loss (\S+)", 3])
def test_a_wrong_pattern_says_how_to_write_one(pattern):
    with pytest.raises(BadInput, match=r"regular expression|names no number") as error:
        parse_text(logs("loss 1"), pattern)
    assert "?P<loss>" in error.value.fix


def test_scalars_of_tensorboard_are_read_by_its_own_reader(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    for rank in (0, 1):
        with writer(str(tmp_path / str(rank))) as made:
            for step in range(3):
                made.add_scalar("Loss/train", 1 / (step + 1), step)
                made.add_scalar("Loss/test", 2.0, step)
        (file,) = (tmp_path / str(rank)).iterdir()
        name = file.name.split(".")
        file.rename(file.with_name(".".join([*name[:4], f"mine-{rank}", *name[-2:]])))
    found = read_tensorboard(tmp_path)
    assert [event.fields["loss"] for event in found] == pytest.approx([1, 1 / 2, 1 / 3] * 2)
    assert [event.rank for event in found] == [0, 0, 0, 1, 1, 1]
    assert found[0].fields["Loss/test"] == 2.0
    with pytest.raises(BadInput, match="no event files"):
        read_tensorboard(tmp_path / "nowhere")
