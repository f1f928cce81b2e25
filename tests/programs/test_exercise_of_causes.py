"""Exercise 16: how five runs failed, and on which rank; each wrong answer says where to look."""

import numpy as np
import pandas as pd
import pytest

import kitlib as kit
from trainyard_kit.exercises.checks import causes

from .small_data import load_trainer


def advice(answers, seed=1, nodes=4):
    return {row.name[5]: row.advice for row in kit.check("16", answers=answers, seed=seed, nodes=nodes)}


@pytest.mark.parametrize("seed", [1, 2, 77])
@pytest.mark.parametrize("ranks", [2, 4])
def test_answers_are_judged_by_what_the_program_does(seed, ranks):
    done = load_trainer("failing").plan(seed, ranks)
    assert causes.plan(seed, ranks) == done
    assert sorted(failure for failure, _ in done.values()) == list(causes.FAILURES)
    checked = kit.check("16", answers=done, seed=seed, nodes=ranks)
    assert checked, checked


@pytest.mark.parametrize("seed", [1, 2])
def test_a_wrong_failure_or_rank_gets_a_hint_that_does_not_say_the_right_one(seed):
    for case, (failure, rank) in causes.plan(seed, 4).items():
        for wrong in set(causes.FAILURES) - {failure}:
            hint = advice({case: (wrong, rank)}, seed)[case]
            assert hint == f"not {wrong}: {causes.FAILURE_HINTS[wrong]}"
            assert f"it is {failure}" not in hint
        hint = advice({case: (failure, (rank + 1) % 4)}, seed)[case]
        assert hint == f"{failure} is correct, but not on rank {(rank + 1) % 4}: {causes.RANK_HINTS[failure]}"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "no answer yet"),
        ({"a": ("", None)}, "no answer yet"),
        (5, "answers is a int, and should be a dict"),
        (pd.Series({"a": ("loader", 3)}), "answers is a Series"),
        ({"A": ("loader", 3)}, "answers has A"),
        ({"a": "memory"}, "should be a failure and a rank"),
        ({"a": None}, "should be a failure and a rank"),
        ({"a": ("loader", "3")}, "the rank is '3', and should be an integer from 0 to 3"),
        ({"a": ("loader", 2.0)}, "the rank is 2.0, and should be an integer"),
        ({"a": ("loader", 4)}, "the rank is 4"),
        ({"a": ("loader", -1)}, "the rank is -1"),
        ({"a": ("loader", True)}, "the rank is True"),
        ({"a": (3, "loader")}, "3 is none of deadlock"),
        ({"a": ("out of memory", 1)}, "is none of deadlock, loader, memory, nan, straggler"),
    ],
)
def test_an_answer_of_the_wrong_form_gets_an_example(answers, words):
    assert words in advice(answers)["a"]


def test_a_name_may_be_written_as_the_error_writes_it_and_a_rank_be_of_numpy():
    answers = {
        case: [f" {failure.title()} ", np.int64(rank)] for case, (failure, rank) in causes.plan(1, 4).items()
    }
    assert kit.check("16", answers=answers, seed=1, nodes=4)
