"""What fuzzing has found to reach new code, and what it has found to fail, is tried again."""

import shutil
from pathlib import Path

import pytest

from ..fuzz import gateway
from ..fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_a_corpus_fails(target):
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        try:
            TARGETS[target](path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{target}: {path.name}") from error


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
def test_no_input_of_the_gateways_corpus_fails():
    assert gateway.go_test("-run=^Fuzz").returncode == 0


def test_no_input_of_the_image_stores_corpus_fails():
    assert gateway.go_test("-run=^Fuzz", package="images").returncode == 0
