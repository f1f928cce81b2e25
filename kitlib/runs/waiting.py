"""The reason of a long wait: a run's status with its first cause."""

import time
from collections.abc import Callable
from dataclasses import replace

from kitlib.causes import Diagnosis
from kitlib.errors import KitError
from kitlib.runs.status import PENDING, RUNNING, RunStatus

PATIENCE_SECONDS = {PENDING: 10.0, RUNNING: 30.0}  # without a change, before the cause is looked for
AGAIN_SECONDS = 20.0


class WaitReason:
    """Adds the first cause to the status of a run that has waited for long.

    Args:
        diagnose: Finds the causes.
        clock: In seconds.
    """

    def __init__(
        self, diagnose: Callable[[], Diagnosis], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._diagnose, self._clock = diagnose, clock
        self._counts: tuple[str, int, int] = ("", 0, 0)
        self._next = 0.0
        self._line = ""

    def explain(self, status: RunStatus) -> RunStatus:
        """Replace the reason of a status by the first cause, once the run has waited for long."""
        counts, now = (status.phase, status.running, status.succeeded), self._clock()
        if status.phase not in PATIENCE_SECONDS:
            return status
        if counts != self._counts:
            self._counts, self._line, self._next = counts, "", now + PATIENCE_SECONDS[status.phase]
        elif now >= self._next:
            try:
                self._line = self._diagnose().line
            except KitError:  # the API server is away: the watch of the objects says so
                self._line = ""
            self._next = self._clock() + AGAIN_SECONDS
        return replace(status, reason=self._line) if self._line else status
