"""Answers that are right, or wrong, in an unusual way."""

import pytest

import kitlib as kit

from .exercise_answers import EXPOSED, OPTIMIZER
from .test_exercises import CONFUSION, ELASTIC, FLAGS, cell, dockerfile, rows

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
