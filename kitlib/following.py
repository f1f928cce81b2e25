"""The lines of a run as they are written: waits for its pods, says why they do not run, ends when they do.

Reading one pod is in `logs`; this knows of runs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kitlib import logs, pods
from kitlib.errors import Interrupted
from kitlib.manifests import Object
from kitlib.progress import Part, Progress, progress
from kitlib.status import RunStatus
from kitlib.tracebacks import Line
from kitlib.waiting import wait
from kitlib.watches import Snapshot

if TYPE_CHECKING:
    from kitlib.runs import Run


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
        followers = logs.Followers()
        try:
            for rank, pod in self._wait_for_pods().items():
                followers.add(rank, logs.Follower(self.run.kube, pod, lambda pod=pod: self._ended(pod)))
            alive = True
            while alive:
                alive = followers.alive()  # asked first: what they put in before they ended is taken below
                for rank, line in followers.take(1.0 if alive else 0.0):
                    yield prefixed(rank, line, self.rank)
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
            there = {pods.seat(each) for each in seen["Pod"].values() if pods.started(each)}
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
        for line in self:
            print(line, flush=True)  # this is the notebook printing: it asked to be shown the lines

    def __repr__(self) -> str:
        return f'<lines of run "{self.run.name}" as they come: iterate over them>'


def prefixed(rank: int | str, line: Line, only: int | str | None) -> str:
    """Return a line as people see it: with its rank, unless they asked for one rank only."""
    return line.text if only is not None else f"[{pods.called(rank)}] {line.text}"
