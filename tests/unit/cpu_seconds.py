"""A limit on a test's own processor time, which other processes of the machine do not use up."""

import contextlib
import signal
from collections.abc import Iterator

MAX_SECONDS = 2.0


class TooSlowError(Exception):
    """The work took more processor time than it may."""


@contextlib.contextmanager
def cpu_seconds(most: float = MAX_SECONDS) -> Iterator[None]:
    """Interrupt what takes longer, regular expressions too."""

    def interrupt(number: int, frame: object) -> None:
        raise TooSlowError(f"this took more than {most} s of processor time")

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
