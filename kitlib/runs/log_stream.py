"""The lines of a run: as they are written, or those that there are; and how a notebook shows them.

Reading one pod is in `logs`, what people see of a line in `log_format`; this knows of runs.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kitlib.display.progress import Part, Progress, progress
from kitlib.display.tables import Text
from kitlib.display.tracebacks import Line
from kitlib.errors import Interrupted
from kitlib.k8s import logs, pods
from kitlib.k8s.job_status import RunStatus
from kitlib.k8s.manifests import Object
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import Snapshot
from kitlib.metrics.log_format import format_line

if TYPE_CHECKING:
    from kitlib.runs.run import Run


class LogStream:
    """Lines of a run as they are written; iterate over it, or let a notebook show it.

    Args:
        run: The run.
        rank: Of which pod; None for all.
        timeout: Seconds to wait for the pods to start.
        part_of: Where the wait for them is shown; by default in a line of its own.
    """

    def __init__(
        self, run: "Run", rank: int | str | None, timeout: float, *, part_of: Progress | None = None
    ) -> None:
        self.run, self.rank, self.timeout, self.part_of = run, rank, timeout, part_of

    def __iter__(self) -> Iterator[str]:
        return (prefixed(rank, line, self.rank) for rank, line in self.lines())

    def lines(self) -> Iterator[tuple[int | str, Line]]:
        """Yield what is written as it comes, with the rank, or whatever the pod is known by."""
        followers = logs.Followers()
        try:
            for rank, pod in self._wait_for_pods().items():
                followers.add(rank, logs.Follower(self.run.kube, pod, lambda pod=pod: self._ended(pod)))
            alive = True
            while alive:
                alive = followers.alive()  # asked first: what they put in before they ended is taken below
                yield from followers.take(1.0 if alive else 0.0)
        except KeyboardInterrupt as error:
            raise Interrupted(
                "stopped following; the run goes on by itself",
                about=self.run._about,
                fix="run.logs(follow=True) begins again, run.wait() only waits, run.delete() ends it",
            ) from error
        finally:
            followers.close()

    def _wait_for_pods(self) -> dict[int | str, Object]:
        """Wait until the pods that are asked for have started, saying why they have not."""
        run = self.run
        run._ranks(self.rank)  # a wrong rank is an error now, not after a wait

        def begun(seen: Snapshot) -> bool:
            status = self._judged(seen)
            there = {pods.replica_id(each) for each in seen["Pod"].values() if pods.started(each)}
            return status.finished or (
                self.rank in there if self.rank is not None else len(there) >= status.wanted
            )

        with Part(self.part_of) if self.part_of else progress(f"run {run.name}") as line:
            wait(
                run._watched(),
                until=begun,
                timeout=self.timeout,
                what="the pods to start",
                about=run._about,
                resume="follow the logs again, or run.delete()",
                describe=lambda seen: str(self._judged(seen)),
                report=line.update,
            )
            if line.last:
                line.done("its output follows")
        return run._ranks(self.rank)

    def _judged(self, seen: Snapshot) -> RunStatus:
        return self.run._judged(seen)

    def _ended(self, pod: Object) -> bool:
        now = self.run.kube.find("Pod", pod["metadata"]["name"])
        return now is None or pods.finished(now)

    def _ipython_display_(self) -> None:
        for rank, line in self.lines():  # this is the notebook printing: it asked to be shown the lines
            print(readable(rank, line, self.rank), flush=True)

    def __repr__(self) -> str:
        return f'<lines of run "{self.run.name}" as they come: iterate over them>'


class Log(Text):
    """What the pods of a run have written: the text as it was written; a cell shows it as people read it.

    Args:
        lines: In their order, with the rank of each.
        only: The rank that was asked for; by default each line begins with its rank.
        note: What is shown where there are no lines.
    """

    lines: list[tuple[int | str, Line]]

    def __new__(
        cls, lines: Iterable[tuple[int | str, Line]], *, only: int | str | None = None, note: str = ""
    ):
        kept = list(lines)
        made = super().__new__(cls, "\n".join(prefixed(rank, line, only) for rank, line in kept))
        made.lines, made.only, made.note = kept, only, note
        return made

    def __repr__(self) -> str:
        return "\n".join(readable(rank, line, self.only) for rank, line in self.lines) or self.note


def prefixed(rank: int | str, line: Line, only: int | str | None) -> str:
    """Return a line as it was written, with its rank, unless only one rank was asked for."""
    return line.text if only is not None else f"[{pods.display_name(rank)}] {line.text}"


def readable(rank: int | str, line: Line, only: int | str | None) -> str:
    """Return a line as people read it, with its rank, unless only one rank was asked for."""
    if only is not None:
        return format_line(line.text)
    called = pods.display_name(rank)
    return f"[{called}] {format_line(line.text, pod=called)}"
