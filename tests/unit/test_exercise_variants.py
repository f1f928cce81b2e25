"""Answers that are right, or wrong, in an unusual way."""

import os

import pytest

import kitlib as kit
from trainyard_kit.exercises.checks.dataset import Entries

from .exercise_answers import EXPOSED, OPTIMIZER, RESUME
from .test_exercises import CONFUSION, DATASET, ELASTIC, FINISH, FLAGS, INSTRUCTION, cell, dockerfile, rows

ZEROS = "__import__('numpy').zeros((classes, classes), int)"
LAZY = "(image for n, image in enumerate(whole) if n % world_size == rank)"
RIGHT = [
    ("12", CONFUSION, "[[0] * classes for _ in range(classes)]", ZEROS),
    ("12", CONFUSION, "return matrix", "return __import__('pandas').DataFrame(matrix)"),
    ("10", OPTIMIZER, "SGD(parameters, lr=0.05)", "Adam(parameters, lr=0.002)"),
    ("08", ELASTIC, "whole[rank::world_size]", LAZY),
    ("15", EXPOSED, "return total", "return __import__('fractions').Fraction(total)"),
]
WRONG = [
    ("08", ELASTIC, 'state["step"] = step', 'state["step"] = rank or step', "rank 0 may be the one"),
    ("15", EXPOSED, "return total", "return int(total)", "should be"),
    ("14", RESUME, " set_state_dict(", " (lambda *_, **__: 0)(", "learning rate"),
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
