"""Answers that are right, or wrong, in an unusual way."""

import os
import sys

import pytest

import kitlib as kit
from kitlib.display.progress import Progress
from trainyard_kit.exercises import apart
from trainyard_kit.exercises.checks.dataset import Entries

from .exercise_answers import BUBBLE, EXPOSED, FORMULA, OPTIMIZER, RESUME, SHARDED, STEP
from .test_exercises import CONFUSION, DATASET, ELASTIC, FINISH, FLAGS, INSTRUCTION, cell, dockerfile, rows

ZEROS = "__import__('numpy').zeros((classes, classes), int)"
LAZY = "(image for n, image in enumerate(whole) if n % world_size == rank)"
RIGHT = [
    ("12", CONFUSION, "[[0] * classes for _ in range(classes)]", ZEROS),
    ("12", CONFUSION, "return matrix", "return __import__('pandas').DataFrame(matrix)"),
    ("10", OPTIMIZER, "SGD(parameters, lr=0.05)", "Adam(parameters, lr=0.002)"),
    ("08", ELASTIC, "whole[rank::world_size]", LAZY),
    ("15", EXPOSED, "return total", "return __import__('fractions').Fraction(total)"),
    ("05-step", STEP, "2 * (workers - 1) / workers * megabytes", "megabytes * (2 - 2 / workers)"),
    ("05-step", STEP, "1000 * sent / mb_per_s", "__import__('numpy').float64(sent) / (mb_per_s / 1e3)"),
    ("06-memory", SHARDED, "(workers if split else 1)", "[1, workers][split]"),
    ("06-memory", SHARDED, "12 * parameters / ", "3 * __import__('torch').tensor(4.0 * parameters) / "),
    ("15-step", FORMULA, "return 6", "import math\n        return 3 * math.pi / math.pi * 2"),
    ("18", BUBBLE, "return ", "return 1 - micro_batches / (micro_batches + stages - 1) if stages > 1 else "),
    ("18", BUBBLE, "return (stages - 1)", "return __import__('fractions').Fraction(stages - 1)"),
    ("15-step", FORMULA, "return 6", "sent = __import__('torch').tensor(sent)\n        return 6"),
]
WRONG = [
    ("18", BUBBLE, "return ", "return 100 * ", "a share, not a percentage"),
    ("18", BUBBLE, "(micro_batches + stages - 1)", "micro_batches", "while one computes"),
    ("18", BUBBLE, "(micro_batches + stages - 1)", "(micro_batches + stages)", "while one computes"),
    ("18", BUBBLE, "(stages - 1) / (micro_batches + stages - 1)", "0.5", "no stage before it"),
    ("05-step", STEP, "+ undivided", "+ undivided / workers", "all of undivided"),
    ("05-step", STEP, "computing / workers", "computing", "computing / workers"),
    ("05-step", STEP, "(workers - 1) / workers", "1", "the sum of computing and undivided"),
    ("05-step", STEP, "2 * (workers", "(workers", "a ring sends 2 (n - 1) / n"),
    ("05-step", STEP, "1000 * ", "", "1000 milliseconds"),
    ("05-step", STEP, "return ", "step = ", "should be a number"),
    ("06-memory", SHARDED, "12 *", "16 *", "weight, gradient and momentum"),
    ("06-memory", SHARDED, "12 *", "3 *", "of 4 bytes each"),
    ("06-memory", SHARDED, "(workers if split else 1)", "workers", "nothing of the state"),
    ("06-memory", SHARDED, "(workers if split else 1)", "1", "a worker holds its part alone"),
    ("06-memory", SHARDED, "if split", "if not split", "nothing of the state"),
    ("15-step", FORMULA, "return 6", "return 2", "6 FLOPs of a parameter and token"),
    ("15-step", FORMULA, "tokens / (", "tokens / (ranks * ", "do not divide them"),
    ("15-step", FORMULA, " / 8)", ")", "eight of which are a byte"),
    ("15-step", FORMULA, "* 4 *", "* 2 *", "4 bytes of each parameter"),
    ("15-step", FORMULA, "(ranks - 1) / ranks", "1", "is 0 with one rank"),
    ("15-step", FORMULA, ", sent / (gbit * 1e9 / 8)", "", "2 numbers: computing, exchange"),
    ("08", ELASTIC, 'state["step"] = step', 'state["step"] = rank or step', "rank 0 may be the one"),
    ("15", EXPOSED, "return total", "return int(total)", "should be"),
    ("14", RESUME, " set_state_dict(", " (lambda *_, **__: 0)(", "the learning rate is 0.05, and was 0.02"),
    ("14", RESUME, '{"model": weights', '{"weights": weights', "the checkpoint has no weights.0.weight"),
    ("14", RESUME, 'return state["step"]', "return", "returns None where step 3 comes next: return it"),
    ("04", DATASET, " / 255", " / 256", "no byte divided by 255"),
    ("04", DATASET, " / 255", " / 127.5 - 1", "the smallest value is"),
    ("04", DATASET, ".float() / 255", ".float() // 255", "every value is 0"),
    ("04", DATASET, "enumerate(folders)", "enumerate(folders, 1)", "count the folders from 0"),
    ("04", DATASET, "/ 255, label", "/ 255, int(label > 2)", "several classes have one label"),
    ("04", DATASET, "/ 255, label", "/ 255, torch.tensor([label])", "should be an int"),
    ("10", OPTIMIZER, "lr=0.05", "lr=0.5", "steps are too large: lr is 0.5, and 0.0"),
    ("10", OPTIMIZER, "lr=0.05", "lr=50.0", "steps are too large: lr is 50"),
    ("10", OPTIMIZER, "lr=0.05", "lr=0.05, maximize=True", "maximize=True climbs"),
    ("10", OPTIMIZER, "lr=0.05", "lr=0.05, weight_decay=1", "weight_decay pulls"),
    ("10", OPTIMIZER, "SGD(parameters, lr=0.05)", "LBFGS(parameters)", "it raises TypeError: LBFGS.step()"),
    ("06", FINISH, "return correct", "return torch.tensor([7.0])", "should return"),
    ("06", FINISH, "return correct", "return correct * 0 + 7.0", "should return"),
    ("06", FINISH, "model.module.state_dict()", "torch.nn.Linear(2, 1).state_dict()", "other values"),
    ("06", FINISH, "model.module.state_dict()", "dict.fromkeys(model.module.state_dict())", "other values"),
]


@pytest.mark.parametrize(("notebook", "solution", "old", "new"), RIGHT)
def test_an_answer_may_be_right_in_an_unusual_way(notebook, solution, old, new):
    assert (found := rows(notebook, solution.replace(old, new))), found


@pytest.mark.parametrize(("notebook", "solution", "old", "new", "advice"), WRONG)
def test_an_answer_that_is_wrong_in_an_unusual_way_is_told_why(notebook, solution, old, new, advice):
    found = rows(notebook, solution.replace(old, new))
    assert any(advice in row.advice for row in found if row.right is False), found


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ("self.items[index]", "self.items[max(0, index - 1)]", "use its index"),
        (" / 255", " / 255 * 0.5", "no byte divided by 255"),
    ],
)
def test_what_follows_from_a_mistake_is_not_called_one_of_its_own(old, new, advice):
    wrong_rows = [row for row in rows("04", DATASET.replace(old, new)) if row.right is False]
    assert [advice in row.advice for row in wrong_rows] == [True], wrong_rows


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "notebook", "answer"),
    [
        ("trainyard_kit.exercises.apart.run", "12", CONFUSION),
        ("trainyard_kit.exercises.checks.ddp.train", "05", None),
    ],
)
def test_an_interrupt_is_one_line_and_not_the_kits_own_frames(place, notebook, answer, monkeypatch, tmp_path):
    monkeypatch.setattr(place, interrupt)
    program = tmp_path / "program.py"
    program.write_text("print()")
    written = {"confusion": cell(answer, monkeypatch)["confusion"]} if answer else {"program": program}
    with pytest.raises(KeyboardInterrupt) as caught:
        kit.check(notebook, **written)
    (line,) = caught.value._render_traceback_()
    assert line.splitlines()[0] == "Interrupted: the check was interrupted, and nothing is judged"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_line_moves_while_an_answer_is_judged_where_it_can_be_replaced(in_place, monkeypatch, tmp_path):
    shown = []
    line = type("Line", (Progress,), {"in_place": in_place, "show": lambda _, text: shown.append(text)})
    monkeypatch.setattr(apart, "progress", line)
    monkeypatch.setattr(apart, "TICK", 0.1)
    done = tmp_path / "done"
    program = f"import pathlib, time; pathlib.Path({str(done)!r}).touch(); time.sleep(1)"
    with apart.checking("training") as show:
        ended, _ = apart.run(
            [sys.executable, "-c", program],
            seconds=20,
            folder=str(tmp_path),
            on_tick=show(lambda: f"{int(done.exists())} of 1 files"),
        )
    assert ended == 0
    assert (shown[0], shown[-1]) == ("training", "training")
    assert any(text.startswith("1 of 1 files, ") for text in shown) == in_place


def test_modules_of_other_cells_and_what_a_definition_uses_of_its_own_are_there(monkeypatch):
    source = CONFUSION.replace("matrix = [", "matrix = SIZE and [").replace("return ", "return pd.DataFrame")
    namespace = cell(
        "    SIZE = len([1, 2])\n" + source.replace("DataFramematrix", "DataFrame(matrix)"), monkeypatch
    )
    namespace["pd"] = __import__("pandas")
    assert (found := kit.check("12", confusion=namespace["confusion"])), found


def test_a_package_without_its_requirements_leaves_torch_as_it_is():
    flags = FLAGS.partition(" --constraint")[0]
    assert kit.check("03", dockerfile=dockerfile(f"RUN pip install {flags} --no-deps einops==0.8.2"))


@pytest.mark.parametrize(
    ("instruction", "advice"),
    [
        (f"{INSTRUCTION} || true", "if pip fails"),
        (f"{INSTRUCTION}; echo done", "if pip fails"),
        (INSTRUCTION.replace("install", "install --dry-run"), "with --dry-run"),
        (INSTRUCTION.replace("install", "install --target=/opt/more"), "with --target"),
        (f"{INSTRUCTION}; rm -rf /root/.cache/pip", "if pip fails"),
        (f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm -rf /tmp/pip", "pass --no-cache-dir"),
        (f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm /root/.cache/pip", "pass --no-cache-dir"),
    ],
)
def test_an_instruction_that_may_leave_the_image_without_the_package_is_refused(instruction, advice):
    found = kit.check("03", dockerfile=dockerfile(instruction))
    assert any(advice in row.advice for row in found if row.right is False), found


@pytest.mark.parametrize(
    "instruction",
    [
        INSTRUCTION.replace("install", "--no-input install -q"),
        f"{INSTRUCTION.replace('--no-cache-dir ', '')} && pip cache purge",
        f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm -rf /root/.cache/pip",
        f"{INSTRUCTION.replace('--no-cache-dir ', '')} && rm -r -f ~/.cache/",
    ],
)
def test_options_may_come_before_install_and_downloads_be_purged_in_the_same_layer(instruction):
    assert (found := kit.check("03", dockerfile=dockerfile(instruction))), found


def test_labels_in_the_order_of_a_file_system_are_refused_though_this_one_sorts(monkeypatch):
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: Entries(sorted(scandir(path), key=lambda one: one.name)))
    source = DATASET.replace("sorted(each for each in Path(root).iterdir())", "list(Path(root).iterdir())")
    source = source.replace("return len", "self.items.sort()\n            return len")
    found = rows("04", source)
    assert any("files and folders" in row.advice for row in found if row.right is False), found
