"""A run without a cluster: torchrun's processes on this machine, followed and measured as a `Run` is."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kitlib.causes import Diagnosis, Facts, causes
from kitlib.causes.processes import PROBE, RANKS, RankState, read_states
from kitlib.causes.rules.hangs import RULES
from kitlib.display.progress import progress
from kitlib.display.signatures import checked_class
from kitlib.display.tracebacks import Line
from kitlib.k8s import logs
from kitlib.k8s.wait import wait
from kitlib.runs import parent_watchdog
from kitlib.runs.diagnosis import HANG_SECONDS, oldest_call, run_failed, seconds_without_a_step
from kitlib.runs.logs import Log
from kitlib.runs.reports import Reports

POLL_SECONDS = 0.2
_RANK = re.compile(r"\[[a-z_]+(\d+)\]:(?:\[rank\1\]: )?")  # by torchrun's --tee; of a traceback by torch, too


@checked_class
class LocalRun(Reports):
    """A program that torchrun starts on this machine, in the working directory; it ends with this process.

    Args:
        name: Of the run.
        program: Path of the program; or its file name, if there are sources.
        args: Its flags.
        processes: How many ranks.
        sources: Files by their path below a temporary folder; the program is one of them.

    Example:
        >>> run = kit.torchrun("train.py", processes_per_node=2)
        >>> run.wait()
        >>> run.plot()
    """

    def __init__(
        self,
        name: str,
        program: Path,
        args: Sequence[str] = (),
        *,
        processes: int = 1,
        sources: Mapping[str, str | bytes] | None = None,
    ) -> None:
        self.name, self.about = name, f'run "{name}" on this machine'
        folder = Path(tempfile.mkdtemp(prefix="trainyard-run-"))  # the watchdog removes it
        for name, content in (sources or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        tee = ["--tee=3", f"--log-dir={folder / 'logs'}"]  # names the rank in each line
        command = [
            sys.executable,
            "-m",
            *torchrun,
            *tee,
            str(folder / program if sources else program),
            *args,
        ]
        path = os.pathsep.join(filter(None, [str(RANKS.parent), os.environ.get("PYTHONPATH")]))
        self._began = datetime.now(UTC).isoformat()
        with (folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-S", parent_watchdog.__file__, str(os.getpid()), str(folder), *command],
                stdin=subprocess.PIPE,  # its end tells the watchdog that this process has ended
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": path, "TRAINYARD_RANKS": str(folder)},
                start_new_session=True,
            )
        self._output = (folder / "output").open(encoding="utf-8", errors="replace")
        self._lines: dict[int | str, list[Line]] = {}
        self._written: list[Line] = []  # in the order of the file, with what torchrun writes itself
        self._torn = ""

    def logs(self, *, rank: int | None = None, follow: bool = False) -> Log | Iterator[str]:
        """Read the output: as it is now, or with ``follow`` line by line until the end."""
        if follow:
            return self._followed(rank)
        written = self._logs()
        if rank is not None:
            written = {rank: written.get(rank, [])}
        return Log(logs.merge(written), only=rank, note="(no output yet)")

    def wait(self, *, timeout: float = 3600) -> "LocalRun":
        """Wait until it has succeeded, showing its last line.

        Raises:
            RunFailed: It failed; the error has the traceback of the rank that failed first.
            WaitTimeout: It took longer.
        """
        with progress(f"run {self.name}") as line:
            wait(
                self._states(),
                until=lambda _: self._process.poll() is not None,
                timeout=timeout,
                what="the run to end",
                about=self.about,
                resume="`run.wait()` waits again, `run.delete()` ends it",
                report=line.update,
            )
            if self._process.returncode == 0:
                line.done("Succeeded")
        if code := self._process.returncode:
            raise run_failed(self.why(), reason=f"torchrun ended with exit code {code}")
        return self

    def why(self, *, hang_after: float = HANG_SECONDS) -> Diagnosis:
        """Find out why it has failed or hangs: who, what, the evidence, and what to do.

        Args:
            hang_after: As for `Run.why`.
        """
        self._logs()
        code = self._process.poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        if code == 0:
            return Diagnosis(self.about, phase)
        processes = self._look() if code is None else []
        idle_seconds = seconds_without_a_step(
            (), {0: self._written} if self._written else {0: [Line(self._began, "")]}
        )
        idle_seconds = max(idle_seconds, oldest_call(processes))
        facts = Facts(
            run=self.name,
            logs=self._lines if code is None else {0: self._written},
            phase=phase,
            processes=processes,
            hang_seconds=idle_seconds if idle_seconds >= hang_after else 0.0,
        )
        among = RULES if code is None else None
        return Diagnosis(self.about, phase, tuple(causes(facts, among=among)), ranks=tuple(processes))

    def _look(self) -> list[RankState]:
        probe = [sys.executable, "-S", "-c", PROBE, str(self._process.pid)]
        with contextlib.suppress(OSError, ValueError):
            inspection = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
            return list(read_states(inspection.stdout, 0))
        return []

    def delete(self) -> None:
        """End its processes, and remove its temporary folder."""
        if self._process.poll() is None:
            self._process.terminate()  # the watchdog ends all of them, after `STOP_SECONDS` at most
            self._process.wait()
        assert self._process.stdin, "it is a pipe"
        self._process.stdin.close()
        self._logs()
        self._output.close()

    def _states(self) -> Iterator[str]:
        while True:
            lines = logs.merge(self._logs())
            yield lines[-1][1].text if lines else "starting"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_SECONDS)

    def _followed(self, only: int | None) -> Iterator[str]:
        position = 0
        for _ in self._states():
            over = self._process.poll() is not None
            lines = logs.merge(self._logs())
            yield from (line.text for rank, line in lines[position:] if only in (None, rank))
            position = len(lines)
            if over:
                return

    def _logs(self) -> dict[int | str, list[Line]]:
        """Read the lines since the last call, with the current time."""
        now = datetime.now(UTC).isoformat()
        if self._output.closed:
            return self._lines
        *whole, self._torn = (self._torn + self._output.read()).split("\n")
        for text in whole:
            if named := _RANK.match(text):
                self._lines.setdefault(int(named[1]), []).append(Line(now, text[named.end() :]))
            self._written.append(Line(now, _RANK.sub(r"[rank\1]: ", text, count=1)))
        return self._lines
