"""Which objects a reset of a notebook deletes, and in which order."""

import pytest

from kitlib.errors import BadInput
from trainyard_kit import workshop
from trainyard_kit.workshop import notebook_reset

MADE = {"02": ["volume/shared", "pod/writer"], "05": ["run/digits"], "06": ["run/cifar", "volume/shared"]}


def test_an_object_of_two_notebooks_belongs_to_the_first():
    assert notebook_reset.plan(MADE, ["06"]) == [("06", "run/cifar", "06"), ("06", "volume/shared", "02")]


def test_a_notebook_that_is_not_there_is_bad_input():
    with pytest.raises(BadInput, match="one of 00, 01"):
        workshop.reset("99", cluster="never-asked")
