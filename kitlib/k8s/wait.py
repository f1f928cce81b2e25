"""The one wait function: for a state of an endless iterator, before a deadline.

A deadline that a user gives is for all of the wait. The kit's own is for a standstill, as a Deployment's
``progressDeadlineSeconds``: each change restarts it, since machines differ in speed.
"""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from kitlib.errors import BadInput, Interrupted, KitError, WaitTimeout

State = TypeVar("State")
PROGRESS_SECONDS = 180.0  # more than a pod's grace period, and a node's that went away
GRACE_SECONDS = 30  # an API server that dies is back within seconds


def wait(
    states: Iterable[State],
    *,
    until: Callable[[State], bool],
    timeout: float | None = None,
    standstill: float = PROGRESS_SECONDS,
    what: str,
    about: str,
    resume: str,
    describe: Callable[[State], str] = str,
    report: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> State:
    """Wait for the first of ``states`` for which ``until`` holds.

    Args:
        states: Yields at least once a second, so that the deadline is kept.
        until: Whether a state is the awaited one.
        timeout: Seconds for all of it; None waits while the description changes.
        standstill: Seconds within which it then has to change.
        what: As in "waiting for <what>".
        about: The object: ``run "digits"``.
        resume: The fix after an interruption or a timeout.
        describe: Describes a state in a line; the last one is in the error.
        report: Called with each description.
    """
    limit = seconds(standstill if timeout is None else timeout)
    deadline, before = clock() + limit, None
    last = "no state yet"
    try:
        for state in states:
            if until(state):
                return state
            last = describe(state)
            report(last)
            if timeout is None and last != before:
                deadline, before = clock() + limit, last
            if clock() >= deadline:
                break
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped waiting for {what}; it continues. Last seen: {last}", about=about, fix=resume
        ) from error
    late = "timed out after {:g} s waiting for" if timeout else "no progress for {:g} s while waiting for"
    raise WaitTimeout(f"{late.format(limit)} {what}. Last seen: {last}", about=about, fix=resume)


def seconds(timeout: object) -> float:
    """Check a timeout: a number of seconds above 0."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        what = "a timeout is a number of seconds above 0"
        raise BadInput(what, about=f"timeout={timeout!r}", fix="`timeout=300`")
    return float(timeout)


class ErrorGrace:
    """The time for which passing errors are tolerated; call it at each success and each failure."""

    def __init__(self, *, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace, self.clock = grace, clock
        self.since: float | None = None

    def succeeded(self) -> None:
        """Forget earlier failures."""
        self.since = None

    def failed(self, error: KitError) -> None:
        """Raise the error unless it may pass and the grace period lasts."""
        self.since = self.clock() if self.since is None else self.since
        if not error.passing or self.clock() - self.since > self.grace:
            raise error
