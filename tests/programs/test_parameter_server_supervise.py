"""A container's first process, and the program that it starts as a child."""

import shutil
import subprocess
import sys

import pytest

from .forked import TRAINERS

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
    for name in ("__init__.py", "supervise.py"):
        shutil.copy(TRAINERS / "parameter_server" / name, package)
    (package / "worker.py").write_text(PROGRAM + ending)
    command = [sys.executable, "-m", "parameter_server.supervise", "worker", "--index=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stderr.endswith(output)
    if "SIGKILL" not in ending:
        assert done.stdout.startswith("working ['--index=1']\nbye\n")
    if code < 100 and "/" not in ending:
        assert "taken apart" not in done.stdout  # with torch that takes a second
