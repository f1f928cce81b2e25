"""Nothing of a run on this machine is left when its kernel ends, however it ends; the folder goes last."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kitlib.runs import parent_watchdog

from ..patience import until

# Like torchrun, it starts a rank in a session of its own, which has a child too.
TREE = """
import os, pathlib, signal, subprocess, sys, time
ignore, folder, depth = sys.argv[1] == "ignore", pathlib.Path(sys.argv[2]), int(sys.argv[3])
if ignore:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth:
    subprocess.Popen([sys.executable, __file__, sys.argv[1], folder, str(depth - 1)], start_new_session=True)
(folder.parent / f"pid-{depth}").write_text(str(os.getpid()))
while True:
    time.sleep(0.1)
    if not folder.exists():
        (folder.parent / "folder-went-first").touch()
"""
KERNEL = """
import os, subprocess, sys, time
command = [sys.executable, "-S", sys.argv[1], str(os.getpid()), sys.argv[2], sys.executable, *sys.argv[3:]]
subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
if os.fork() == 0:  # as a data loader: it has the pipe's end, and goes on
    time.sleep(60)
if "return" in sys.argv:
    sys.stdin.read()
else:
    time.sleep(600)
"""


@pytest.fixture
def tree(tmp_path):
    """Start a kernel with a run, and return both with the pids of the run's processes."""
    kernels = []

    def start(*, ignore=False, how="sleep"):
        folder, program = tmp_path / "folder", tmp_path / "tree.py"
        folder.mkdir()
        program.write_text(TREE)
        words = ["ignore" if ignore else "end", str(folder), "2", how]
        kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL, parent_watchdog.__file__, str(folder), str(program), *words],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        kernels.append(kernel)
        files = [tmp_path / f"pid-{depth}" for depth in range(3)]
        until(lambda: all(path.exists() and path.read_text() for path in files))
        return kernel, folder, [int(path.read_text()) for path in files]

    yield start
    for kernel in kernels:
        os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, "return"], ids=str)
def test_ranks_end_with_the_kernel_and_their_folder_after_them(how, tree, tmp_path):
    kernel, folder, pids = tree(how=str(how))
    if how == "return":
        kernel.stdin.close()
    else:
        kernel.send_signal(how)
    until(lambda: not any(map(_runs, pids)))
    until(lambda: not folder.exists())
    assert not (tmp_path / "folder-went-first").exists()


def test_ranks_that_ignore_the_signal_are_killed(tree, tmp_path):
    kernel, folder, pids = tree(ignore=True)
    kernel.kill()
    until(lambda: not any(map(_runs, pids)) and not folder.exists())
    assert not (tmp_path / "folder-went-first").exists()


@pytest.mark.parametrize(
    ("program", "status"), [("exit(0)", 0), ("exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_status_is_the_commands_and_what_it_has_left_behind_is_killed(program, status, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    leave = "subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    source = f"import os, subprocess; open('{tmp_path}/pid', 'w').write(str({leave})); {program}"
    command = [
        sys.executable,
        parent_watchdog.__file__,
        str(os.getpid()),
        str(folder),
        sys.executable,
        "-c",
        source,
    ]
    assert subprocess.run(command, check=False, timeout=60).returncode == status
    assert not folder.exists()
    assert not _runs(int((tmp_path / "pid").read_text()))
