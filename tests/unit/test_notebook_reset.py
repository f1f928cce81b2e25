"""Which objects a reset of a notebook deletes, and in which order."""

import pytest

from kitlib.errors import BadInput
from trainyard_kit import workshop
from trainyard_kit.workshop import notebook_reset

MADE = {"02": ["volume/shared", "pod/writer"], "05": ["run/digits"], "06": ["run/cifar", "volume/shared"]}


def test_what_two_notebooks_make_belongs_to_the_first():
    assert notebook_reset.plan(MADE, ["06"]) == [("06", "run/cifar", "06"), ("06", "volume/shared", "02")]


def test_runs_and_pods_go_before_the_volumes_that_they_use():
    things = [made for _, made, _ in notebook_reset.plan(MADE, list(MADE))]
    assert things == ["pod/writer", "run/digits", "run/cifar", "volume/shared"]


def test_everything_is_planned_once_and_by_its_owner():
    assert all(number == owner for number, _, owner in notebook_reset.plan(MADE, list(MADE)))


def test_a_notebook_that_is_not_there_is_bad_input():
    with pytest.raises(BadInput, match="one of 00, 01"):
        workshop.reset("99", cluster="never-asked")
