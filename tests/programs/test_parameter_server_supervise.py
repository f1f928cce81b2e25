"""A container's first process, and the program that it starts as a child."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .parameter_server_job import TRAINERS

PROGRAM = """
import atexit, sys, types
atexit.register(print, "bye")
class Slow:
    def __del__(self):
        print("taken apart", flush=True)
sys.modules["kept"] = types.ModuleType("kept")
sys.modules["kept"].slow = Slow()
print("working", sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("ending", "code", "output"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no records')", 1, "no records\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by signal 9\n"),
    ],
)
def test_its_status_and_output_are_the_programs_own(tmp_path, ending, code, output):
    package = tmp_path / "parameter_server"
    package.mkdir()
    (package / "__init__.py").touch()
    supervise = Path(TRAINERS) / "parameter_server" / "supervise.py"
    (package / "supervise.py").write_text(supervise.read_text())
    (package / "worker.py").write_text(PROGRAM + ending)
    done = subprocess.run(
        [sys.executable, "-m", "parameter_server.supervise", "worker", "--index=1"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert done.stderr.endswith(output)
    if "SIGKILL" not in ending:
        assert done.stdout.startswith("working ['--index=1']\nbye\n")
    if code < 100 and "/" not in ending:
        assert "taken apart" not in done.stdout  # with torch that takes a second
