"""The forkserver and real namespaces together: a fork becomes PID 1 of a container."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# As a runtime: root needs no user namespace.
USER = ["--map-root-user"] if os.getuid() else []
SPACES = ["--mount", "--net", "--uts", "--ipc", "--pid"]
UNSHARE = ["unshare", *USER, *SPACES, "--fork", "--mount-proc", "--propagation=private"]


@pytest.fixture
def container(tmp_path: Path):
    """Run a command in a container of a runtime of its own, with ``tmp_path/scripts`` at /scripts."""
    if shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no namespaces")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scripts").mkdir()

    def run(*argv: str) -> dict:
        program = str(Path(__file__).with_name("forkserver_container.py"))
        line = [
            *UNSHARE,
            sys.executable,
            program,
            str(tmp_path / "scratch"),
            str(tmp_path / "scripts"),
            *argv,
        ]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ)
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_script_is_process_1_of_its_container_without_privileges(container, tmp_path):
    (tmp_path / "scripts" / "show.py").write_text(
        "import os, sys\n"
        "print(os.getpid(), os.getppid(), sys._getframe().f_back, 'torch' in sys.modules, os.getcwd())\n"
        "print(len(os.listdir('/proc/self/fd')), open('/proc/self/comm').read().strip(), sys.argv)\n"
        "print(os.access('/tmp', os.W_OK), os.path.exists('/scripts/show.py'), os.path.ismount('/tmp'))\n"
        "try:\n"
        "    open('/etc/x', 'w')\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "sys.exit(7)\n"
    )
    outcome = container("python", "show.py", "--flag")
    assert outcome["stdout"].splitlines() == [
        "1 0 None True /scripts",
        "4 python ['show.py', '--flag']",
        "True True True",
        "Read-only file system",
    ]
    assert (outcome["stderr"], outcome["code"]) == ("", 7)


def test_torchruns_workers_are_its_own_children(container, tmp_path):
    (tmp_path / "scripts" / "worker.py").write_text(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "sys.stdout.write(f\"{rank} {os.getppid()} {'torch' in sys.modules}\\n\")\n"
    )
    outcome = container("torchrun", "--nproc-per-node=2", "worker.py")
    assert sorted(outcome["stdout"].splitlines()) == ["0 1 True", "1 1 True"]
    assert outcome["code"] == 0
