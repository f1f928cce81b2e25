"""Ranks that end without a traceback: torchrun's own report names their ends."""

import subprocess
import sys

import pytest

from ..unit.test_kit_tracebacks import first, log

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
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode
    report = first({0: log(done.stderr, 1)})
    assert (report.code, report.error, report.rank) == (code, error, 0)
