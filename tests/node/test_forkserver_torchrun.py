"""Trainers and torchrun's workers as forks: of the forkserver, or of torchrun where it did not start that."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localkube.runtime.forkserver.command import COLD_TORCHRUN

from ..rows import slow
from .forkserver_pair import PYTHON, REPOSITORY, Outcome, Pair, Process

PROGRAMS = Path(__file__).parent / "programs"
TRAINERS = Path(__file__).parent.parent.parent / "trainers"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


def events(outcome: Outcome) -> list[dict]:
    """Return what a trainer reported, without times."""
    records = [json.loads(line) for line in outcome.stdout.splitlines() if line.startswith("{")]
    for event in records:
        for name in ("time", "seconds", "images_per_s"):
            event.pop(name, None)
    return sorted(records, key=lambda event: (event["rank"], event["event"], event.get("step", 0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        ["python"],
        ["torchrun", "--nproc-per-node=2"],
        ["python", "-m", "torch.distributed.run", "--nproc-per-node=2"],
    ],
)
def test_a_trainer_reports_the_same(pair, start, tmp_path):
    cold, forked = pair.both([*start, str(TRAINERS / "digits_ddp.py"), "--epochs=1"], cwd=tmp_path)
    assert (forked.code, cold.code) == (0, 0)
    assert events(forked) == events(cold)
    assert forked.stderr == cold.stderr


def torchrun(*arguments: str, ranks: int = 2) -> list[str]:
    return ["torchrun", f"--nproc-per-node={ranks}", "--monitor-interval=0.1", *arguments]


def forking(pair: Pair, argv: list[str], *, cwd: Path, **env: str) -> Process:
    """Start torchrun in a container that the forkserver does not start: its workers are its own forks."""
    command = [PYTHON, "-P", "-m", COLD_TORCHRUN, *argv]
    return pair.cold(command, env=pair.environment(PYTHONPATH=str(REPOSITORY), **env), cwd=cwd)


@pytest.mark.parametrize("start", [["python"], *slow(["python", "-m"], torchrun())], ids=" ".join)
def test_variables_that_a_program_sets_before_it_imports_torch_have_their_effect(pair, start):
    program = "early_variables" if start[-1] == "-m" else "early_variables.py"
    cold, forked = pair.both([*start, program], cwd=PROGRAMS)
    lines = {f"debug level DebugLevel.DETAIL threads {min(2, os.cpu_count())}"}
    assert set(forked.stdout.splitlines()) == set(cold.stdout.splitlines()) == lines


@pytest.mark.parametrize("way", ["exit", *slow("agree", "raise")])
def test_torchruns_workers_meet_and_end_the_same_way(pair, way):
    argv = torchrun("ranks.py", way)
    cold, forked = pair.both(argv, cwd=PROGRAMS)
    for ours in (forked, forking(pair, argv, cwd=PROGRAMS).finish()):
        assert (ours.code, sorted(ours.stdout.splitlines())) == (cold.code, sorted(cold.stdout.splitlines()))
        assert ("exitcode  : 7" in ours.stderr) == ("exitcode  : 7" in cold.stderr) == (way == "exit")
        assert ("rank 1 fails" in ours.stderr) == (way == "raise")


@pytest.mark.slow
def test_torchrun_keeps_the_workers_output_in_files_when_asked(pair, tmp_path):
    for start in (pair.cold, pair.forked):
        directory = tmp_path / start.__name__
        argv = torchrun("--redirects=3", f"--log-dir={directory}", "ranks.py", "agree")
        outcome = start(argv, env=pair.environment(), cwd=PROGRAMS).finish()
        assert (outcome.code, outcome.stdout) == (0, "")
    logs = [sorted(tmp_path.glob(f"{way}/*/attempt_0/*/stdout.log")) for way in ("cold", "forked")]
    assert [path.read_text() for path in logs[1]] == [path.read_text() for path in logs[0]]
    assert len(logs[1]) == 2


def test_torchrun_that_is_told_to_end_ends_its_workers(pair):
    """One that is alone and never restarted is its only child; others are forked by one that stays."""
    one, two = torchrun("ranks.py", "wait", ranks=1), torchrun("ranks.py", "wait")
    counts, codes = [], set()
    for process, first in (
        (pair.cold(one, env=pair.environment(), cwd=PROGRAMS), "]\n"),
        (pair.forked(one, env=pair.environment(), cwd=PROGRAMS), "]\n"),
        (pair.forked(two, env=pair.environment(), cwd=PROGRAMS), "]\n["),
        (forking(pair, [one[0], "--max-restarts=1", *one[1:]], cwd=PROGRAMS), "]\n"),
    ):
        process.read_until(first)
        workers = children(process)
        os.kill(process.pid, signal.SIGTERM)
        codes.add(process.finish().code)
        counts.append(len(workers))
        assert not [pid for pid in workers if running(pid)]
    assert counts == [1, 1, 3, 2] and len(codes) == 1


def children(process: Process) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def running(pid: int, *, patience: float = 5) -> bool:
    """Tell whether a process still runs, after the kernel had time to end it."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            if " Z " in Path(f"/proc/{pid}/stat").read_text().replace(")", ") "):
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.05)
    return True


WORKER = """
import os, sys
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open("/proc/self/cmdline") as file:
    words = file.read().split(chr(0))
print(attempt, "torch" in sys.modules, words[-3:], "localkube" in sys.modules, flush=True)
sys.exit(attempt == "0")
"""


def test_torchrun_restarts_a_worker_that_failed(pair, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    argv = torchrun("--max-restarts=1", "worker.py", ranks=1)
    forked = pair.forked(argv, env=pair.environment(), cwd=tmp_path).finish()
    own = forking(pair, argv, cwd=tmp_path).finish()
    # A variable that a fork cannot obey leaves torchrun as it is.
    plain = forking(pair, argv, cwd=tmp_path, PYTHONHASHSEED="1").finish()
    for outcome, imported in ((forked, True), (own, True), (plain, False)):
        facts = f"{imported} ['-u', 'worker.py', ''] False"
        assert (outcome.code, outcome.stdout) == (0, f"0 {facts}\n1 {facts}\n")
