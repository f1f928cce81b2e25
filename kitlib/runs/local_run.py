"""A run without a cluster: torchrun's processes on this machine, followed and measured as a `Run` is."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kitlib.display import tracebacks
from kitlib.display.progress import progress
from kitlib.display.tracebacks import Line
from kitlib.errors import RunFailed
from kitlib.k8s import logs
from kitlib.k8s.wait import wait
from kitlib.runs.logs import LAST_LINES, Log
from kitlib.runs.reports import Reports

POLL_SECONDS = 0.2
STOP_SECONDS = 10  # before processes that do not end are killed
_RANK = re.compile(r"\[[a-z_]+(\d+)\]:")  # by torchrun's --tee


class LocalRun(Reports):
    """A program that torchrun starts on this machine, in the working directory.

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
        self._folder = tempfile.TemporaryDirectory(prefix="trainyard-run-")
        here = Path(self._folder.name)
        for name, content in (sources or {}).items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(content.encode() if isinstance(content, str) else content)
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        tee = ["--tee=3", f"--log-dir={here / 'logs'}"]  # names the rank in each line
        with (here / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *torchrun, *tee, str(here / program if sources else program), *args],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._output = (here / "output").open(encoding="utf-8", errors="replace")
        self._lines: dict[int | str, list[Line]] = {}
        self._own: list[str] = []  # what torchrun writes itself
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
                resume="run.wait() waits again, run.delete() ends it",
                report=line.update,
            )
            if self._process.returncode == 0:
                line.done("Succeeded")
        if self._process.returncode:
            raise self._failure()
        return self

    def delete(self) -> None:
        """End its processes, and remove what it wrote to its temporary folder."""
        if self._process.poll() is None:
            self._process.terminate()  # torchrun ends its processes
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._logs()
        self._output.close()
        self._folder.cleanup()

    def _states(self) -> Iterator[str]:
        while True:
            lines = logs.merge(self._logs())
            yield lines[-1][1].text if lines else "starting"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_SECONDS)

    def _followed(self, only: int | None) -> Iterator[str]:
        seen = 0
        for _ in self._states():
            over = self._process.poll() is not None
            lines = logs.merge(self._logs())
            yield from (line.text for rank, line in lines[seen:] if only in (None, rank))
            seen = len(lines)
            if over:
                return

    def _logs(self) -> dict[int | str, list[Line]]:
        """Read what was written since the last call; its time is now."""
        now = datetime.now(UTC).isoformat()
        if self._output.closed:
            return self._lines
        *whole, self._torn = (self._torn + self._output.read()).split("\n")
        for text in whole:
            named = _RANK.match(text)
            if named:
                self._lines.setdefault(int(named[1]), []).append(Line(now, text[named.end() :]))
            else:
                self._own.append(text)
        return self._lines

    def _failure(self) -> RunFailed:
        written = self._logs()
        fix = "fix it and launch again; run.logs(rank=…) has all that a rank wrote"
        found = tracebacks.first(written)
        if found is not None:
            what = f"rank {found.rank} failed first: {found.error}"
            return RunFailed(what, about=self.about, fix=fix, detail=found.text, rank=found.rank)
        texts = [line.text for _, line in logs.merge(written)] or self._own
        what = f"torchrun ended with exit code {self._process.returncode}"
        return RunFailed(what, about=self.about, fix=fix, detail="\n".join(texts[-LAST_LINES:]))
