"""The one way in which the kit waits: for a state, seen by a watch, before a deadline.

Whoever waits brings the states (an iterator that ends never, and yields at least once a second so that the
deadline is kept) and says which of them is the end. Nothing here polls, and nothing here knows of Kubernetes.
"""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from kitlib.errors import BadInput, Interrupted, KitError, WaitTimeout

State = TypeVar("State")
GRACE_SECONDS = 30  # an API server that dies is back within seconds


def wait(
    states: Iterable[State],
    *,
    until: Callable[[State], bool],
    timeout: float,
    what: str,
    about: str,
    resume: str,
    describe: Callable[[State], str] = str,
    report: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> State:
    """Return the first of ``states`` for which ``until`` holds.

    Args:
        timeout: Seconds.
        what: What is waited for, as in "waiting for <what>".
        about: The object: ``run "digits"``.
        resume: How to go on after an interruption or a timeout.
        describe: One line on a state; the last one is in the error.
        report: Called with that line while the wait goes on, for people to see.

    Raises:
        WaitTimeout: The deadline passed; the error has the last state.
        Interrupted: The user pressed the key; nothing else was touched.
    """
    deadline = clock() + seconds(timeout)
    last = "nothing was seen yet"
    try:
        for state in states:
            if until(state):
                return state
            last = describe(state)
            report(last)
            if clock() >= deadline:
                break
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped waiting for {what}; it goes on by itself. Last seen: {last}", about=about, fix=resume
        ) from error
    raise WaitTimeout(f"{what} took longer than {timeout:g} s. Last seen: {last}", about=about, fix=resume)


def seconds(timeout: object) -> float:
    """Return a timeout that can be used.

    Raises:
        BadInput: It is no number of seconds above 0.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise BadInput(
            "a timeout is a number of seconds above 0", about=f"timeout={timeout!r}", fix="timeout=300"
        )
    return float(timeout)


class Patience:
    """How long to bear errors that may pass: tell it of each success and each failure."""

    def __init__(self, *, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace, self.clock = grace, clock
        self.since: float | None = None

    def succeeded(self) -> None:
        """Forget what failed before."""
        self.since = None

    def failed(self, error: KitError) -> None:
        """Raise the error if it will not pass, or has not for too long."""
        self.since = self.clock() if self.since is None else self.since
        if not error.passing or self.clock() - self.since > self.grace:
            raise error
