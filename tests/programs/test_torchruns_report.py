"""Ranks that end without a traceback: torchrun's own report names their ends."""

import os

import pytest

from ..unit.test_kit_tracebacks import first, log
from .forked import TORCHRUN, Program

FLAGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("import os; os._exit(3)", 3, ""),
        (FLAGS, 2, "train.py: error: the following arguments are required: --data"),
    ],
)
def test_an_end_without_a_traceback_is_named_by_torchruns_report(tmp_path, program, code, error):
    trainer, errors = tmp_path / "train.py", tmp_path / "errors"
    trainer.write_text(program)
    torchrun = Program(TORCHRUN, "--standalone", str(trainer), environment=os.environ, errors=errors)
    torchrun.communicate()
    assert torchrun.returncode
    report = first({0: log(errors.read_text(), 1)})
    assert (report.code, report.error, report.rank) == (code, error, 0)
