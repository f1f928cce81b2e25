"""torchrun in a container that the forkserver does not start: the same run, with workers that it forks."""

import os
import signal
from pathlib import Path

import pytest

from localkube.runtime.forkserver.command import COLD_TORCHRUN

from ..rows import slow
from .forkserver_pair import PYTHON, REPOSITORY, Outcome, Pair, Process
from .test_forkserver_torchrun import PROGRAMS, children, running, torchrun

WORKER = """
import os, sys
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open("/proc/self/cmdline") as file:
    words = file.read().split(chr(0))
print(attempt, "torch" in sys.modules, words[1:], "localkube" in sys.modules, flush=True)
sys.exit(attempt == "0")
"""
LAUNCH = ["torchrun", "--nproc-per-node=1", "--max-restarts=1", "--monitor-interval=0.1", "worker.py"]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()  # without its forkserver


def start(pair: Pair, argv: list[str], cwd: Path, **env: str) -> Process:
    prefix = [PYTHON, "-P", "-m", COLD_TORCHRUN]
    return pair.cold([*prefix, *argv], env=pair.environment(PYTHONPATH=str(REPOSITORY), **env), cwd=cwd)


def test_workers_begin_with_what_torchrun_has_imported_and_are_started_again(pair, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    outcome = start(pair, LAUNCH, tmp_path).finish()
    words = ["-u", "worker.py", ""]
    assert (outcome.code, outcome.stdout) == (0, f"0 True {words} False\n1 True {words} False\n")


def test_a_variable_that_a_fork_cannot_obey_leaves_torchrun_as_it_is(pair, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    outcome = start(pair, LAUNCH, tmp_path, PYTHONHASHSEED="1").finish()
    assert [line.split()[1] for line in outcome.stdout.splitlines()] == ["False", "False"]


@pytest.mark.parametrize("way", ["exit", *slow("raise")])
def test_a_worker_that_fails_is_reported_as_by_torchrun_itself(pair, way):
    outcomes: list[Outcome] = []
    for begin in (pair.cold, None):
        argv = torchrun("ranks.py", way)
        process = begin(argv, env=pair.environment(), cwd=PROGRAMS) if begin else start(pair, argv, PROGRAMS)
        outcomes.append(process.finish())
    stock, ours = outcomes
    assert (ours.code, sorted(ours.stdout.splitlines())) == (stock.code, sorted(stock.stdout.splitlines()))
    assert ("exitcode  : 7" in ours.stderr) == ("exitcode  : 7" in stock.stderr) == (way == "exit")
    assert ("rank 1 fails" in ours.stderr) == (way == "raise")


def test_torchrun_that_is_told_to_end_ends_its_workers(pair):
    process = start(pair, torchrun("ranks.py", "wait"), PROGRAMS)
    process.read_until("]\n[")
    workers = children(process)
    os.kill(process.pid, signal.SIGTERM)
    process.finish()
    assert len(workers) >= 2
    assert not [pid for pid in workers if running(pid)]
