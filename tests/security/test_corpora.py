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
@pytest.mark.parametrize("package", ["gateway", "images"])
def test_no_input_of_a_go_packages_corpus_fails(package):
    assert gateway.go_test("-run=^Fuzz", package=package).returncode == 0
