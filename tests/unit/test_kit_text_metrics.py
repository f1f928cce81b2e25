"""Numbers of programs that print no JSON: by the word loss, by a regular expression, from TensorBoard."""

import io
import re
import tomllib
from pathlib import Path

import pytest
from tqdm import tqdm

from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput
from kitlib.metrics.curves import TrainingMetrics
from kitlib.metrics.log_format import format_line
from kitlib.metrics.tensorboard import read_tensorboard
from kitlib.runs.reports import Reports
from kitlib.widgets.plots import plot_loss
from trainyard_kit.program_output import parse_text


def logs(*texts):
    return {0: [Line(f"2026-01-01T00:00:{second:02}.123456789Z", text) for second, text in enumerate(texts)]}


class Written(Reports):
    """What a program has written."""

    def __init__(self, lines):
        self.lines = lines

    def _logs(self):
        return self.lines


@pytest.mark.parametrize(
    "text",
    [
        "lossless: 3",
        "the loss fell",
        "loss is infinite",
        "two-words",
        "loss_scale: 65536",
        "best loss 0.1",
        "loss: 3rd",
        "{'train_runtime': 9.1, 'train_loss': 0.4, 'epoch': 3.0}",
        "RuntimeError: Function NllLossBackward0 returned nan",
    ],
)
def test_other_lines_with_that_word_are_no_steps(text):
    assert parse_text(logs(text)) == []


def test_json_lines_come_before_text_and_a_pattern_before_both():
    both = logs(
        '{"event": "step", "time": 1.0, "rank": 0, "world_size": 1, "step": 7, "loss": 1.0}', "loss 2.0"
    )
    assert [event.fields["loss"] for event in Written(both).reports()] == [1.0]
    assert [event.fields["loss"] for event in Written(logs("loss 2.0")).reports()] == [2.0]
    (event,) = Written(both).reports(pattern=r"^(?P<name>loss) (?P<loss>\S+)")
    assert event.fields == {"step": 0, "name": "loss", "loss": 2.0}


def test_a_pattern_may_name_the_step():
    events = parse_text(logs("it 10: 0.5", "it 20: 0.25"), r"it (?P<step>\d+): (?P<loss>\S+)")
    assert [(event.fields["step"], event.fields["loss"]) for event in events] == [(10, 0.5), (20, 0.25)]
    assert events[0].time < events[1].time


@pytest.mark.parametrize("pattern", ["loss (", r"loss (\S+)", 3])
def test_a_wrong_pattern_says_how_to_write_one(pattern):
    with pytest.raises(BadInput, match=r"regular expression|no named group") as error:
        parse_text(logs("loss 1"), pattern)
    assert "?P<loss>" in error.value.fix


def test_scalars_of_tensorboard_are_read_by_its_own_reader(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    for rank in (0, 1):
        with writer(str(tmp_path / str(rank))) as events_file:
            for step in range(3):
                events_file.add_scalar("Loss/train", 1 / (step + 1), step)
                events_file.add_scalar("Loss/test", 2.0, step)
        (file,) = (tmp_path / str(rank)).iterdir()
        name = file.name.split(".")
        file.rename(file.with_name(".".join([*name[:4], f"mine-{rank}", *name[-2:]])))
    scalars = read_tensorboard(tmp_path)
    assert [event.fields["loss"] for event in scalars] == pytest.approx([1, 1 / 2, 1 / 3] * 2)
    assert [event.rank for event in scalars] == [0, 0, 0, 1, 1, 1]
    assert scalars[0].fields["Loss/test"] == 2.0
    with pytest.raises(BadInput, match="no event files"):
        read_tensorboard(tmp_path / "nowhere")


ONE_LINE = {
    "loss: tensor(0.25, device='cuda:0', grad_fn=<NllLossBackward0>)": (0.25, None),
    "loss=np.float64(0.25)": (0.25, None),
    "\x1b[32mloss\x1b[0m:\t\x1b[1m0.25\x1b[0m": (0.25, None),
    "step\t3\tloss\t0.25\tlr\t0.1": (0.25, None),
    "Loss: 1,234.5": (1234.5, None),
    "LOSS = 2.5E-1": (0.25, None),
    "loss: -.5": (-0.5, None),
    "loss: nan": ("nan", None),
    "loss: 25%, acc: 3%": (25.0, None),
    "The loss is 0.25.": (0.25, None),
    "epoch 1 train loss: .25 val loss: 0.9": (0.25, 0.9),
    "Test set: Average loss: 0.03, Accuracy: 97/100 (97%)": (None, 0.03),
    "valid_loss=0.5 train_loss=0.25": (0.25, 0.5),
    "Loss/val: 0.5 Loss/train: 0.25": (0.25, 0.5),
    "valLoss 0.5 trainLoss 0.25": (0.25, 0.5),
    "loss (train): 0.25, loss (val): 0.5": (0.25, 0.5),
    "val acc: 0.9, loss: 0.25": (0.25, None),
    "Validation epoch 3 loss 0.5": (None, 0.5),
    "box_loss: 2 cls_loss: 1 loss: 0.25": (0.25, None),
    "CrossEntropyLoss: 0.25": (0.25, None),
    '{"epoch": 1, "loss": "0.25", "lr": "0.1"}': (0.25, None),
    "│ val_loss │ 0.5 │": (None, 0.5),
}


def read(*texts):
    """The curves of training and validation."""
    events = parse_text(logs(*texts))
    return tuple(
        [event.fields["loss"] for event in events if event.event == kind] for kind in ("step", "eval")
    )


PUBLISHED = Path(__file__).parents[1] / "walk_throughs" / "pages"


@pytest.mark.parametrize(
    ("page", "steps", "evaluations"),
    [
        ("gke-indexed-job", [2.297087, 2.550339, 2.3613, 0.0515, 0.209231], [0.0825]),
        ("eks-distributed-training-workshop", [2.335, 2.323, 2.247, 2.225, 2.168, 2.163], []),
    ],
)
def test_the_lines_that_published_pages_print_are_read_in_their_order(page, steps, evaluations):
    lines = (PUBLISHED / f"{page}.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if re.search(r"\bloss: \d", line, re.IGNORECASE)]
    train, validation = read(*shown[:20])
    assert train[: len(steps)] == steps
    assert validation == evaluations


@pytest.mark.parametrize("text", ONE_LINE)
def test_a_loss_is_read_however_it_is_written_and_whose_it_is(text):
    train, validation = ONE_LINE[text]
    expected = [train] if train is not None else [], [validation] if validation is not None else []
    assert read(text) == (expected if train != "nan" else (pytest.approx([float("nan")], nan_ok=True), []))


PROGRAMS = tomllib.loads(Path(__file__).with_name("log_formats.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_output_of_public_programs_is_two_curves(name):
    training, validation = read("loading the data", *PROGRAMS[name], "done")
    assert training == [2.5, 1.5]
    assert set(validation) == (set() if name == "Ultralytics" else {1.75})  # which prints scores alone


def test_a_progress_bar_is_a_curve_that_ends_where_its_log_ends():
    written = io.StringIO()
    bar = tqdm(range(20), mininterval=0, desc="fit", file=written)
    for step in bar:
        bar.set_postfix(loss=f"{2.0 / (step + 1):.4f}")
    line = written.getvalue().rstrip("\n")
    assert read(line)[0] == pytest.approx([2 / (step + 1) for step in range(20)], abs=1e-4)
    assert "loss=0.1000" in format_line(line)


def test_training_and_validation_of_one_log_are_two_curves():
    lines = []
    for epoch in range(3):
        lines += [
            f"Epoch {epoch}, Training Loss: {1 / (epoch + 1):.3f}",
            f"Epoch {epoch}, Validation Loss: {epoch + 9:.3f}",
        ]
    events = parse_text(logs(*lines))
    training = TrainingMetrics(events)
    assert list(training.frame().loss[0]) == [1.0, 0.5, 0.333]
    assert training.validation_losses() == [(0, 9.0), (1, 10.0), (2, 11.0)]
    assert "validation loss 9 and 11" in repr(plot_loss(events, title="own"))


CORPUS = tomllib.loads(Path(__file__).with_name("log_corpus.toml").read_text(encoding="utf-8"))
FORMATS = [
    *((f"{entry['source']} {entry['format'][:40]!a}", entry) for entry in CORPUS["format"]),
    *((entry["about"], entry) for entry in CORPUS["line"]),
]


@pytest.mark.parametrize("entry", [entry for _, entry in FORMATS], ids=[name for name, _ in FORMATS])
def test_the_losses_of_a_public_format_are_those_that_a_reader_sees(entry):
    """Each is read on its own; a wrong point is worse than none."""
    training, validation = read(*(line for text in entry["lines"] for line in text.split("\n")))
    assert (training, validation) == (entry["train"], entry["eval"])


def test_a_hundred_formats_name_the_source_in_which_they_stand():
    assert len(CORPUS["format"]) >= 260
    assert {entry["source"].split()[0] for entry in CORPUS["format"]} == CORPUS["commits"].keys()


@pytest.mark.parametrize(
    ("line", "training", "validation"),
    [
        ("Validation loss 40:  0.512500  ", [], [0.5125]),
        ("Train loss 40 0.512500 Grad Norm 1.500000 0.25s/it", [0.5125], []),
        ("Test: [3/200]\tTime 0.250 (0.300)\tLoss 0.5125 (0.6125)", [], [0.5125]),
        ("Epoch: 3, Loss avg: 0.5125", [0.5125], []),
        ("The average loss for epoch 3 is    0.51 and mean absolute error is    1.25.", [0.51], []),
        ("Epoch 3, Loss G:  0.5125, Loss D:  0.6125", [0.5125], []),
        ("target_val_loss:3.28000", [], []),
        ("loss_type=2.0, loss_weights 0.5", [], []),
        ("Iter 17 scaled loss: 33554432.0", [], []),
        ("Best trial final validation loss: 0.5125", [], []),
    ],
)
def test_counters_and_targets_are_no_losses(line, training, validation):
    assert read(line) == (training, validation)
