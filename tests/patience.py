"""How long tests wait for something: as long as anything changes, and then PATIENCE seconds more.

A test that passes alone must pass beside others: how long something takes is a measure of the machine. What
hangs for good is pytest-timeout's to end.
"""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120


class Standstill:
    """A deadline that each new thing seen begins anew."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._seconds, self._end, self._last = seconds, time.monotonic() + seconds, None

    def seen(self, what: Any) -> None:
        """Note something; what is not equal to the thing noted last begins the deadline anew."""
        if what != self._last:
            self._last, self._end = what, time.monotonic() + self._seconds

    def check(self, expected: str) -> None:
        """Fail once nothing new has been seen for so long.

        Raises:
            AssertionError: It says what was expected, and what was seen last.
        """
        assert time.monotonic() < self._end, (
            f"expected {expected}; for {self._seconds:g} s nothing else was seen than {self._last!r}"
        )


def eventually(look: Callable[[], Any], *, expected: Any = True) -> None:
    """Look until the answer is ``expected``: for what cannot be watched, such as a server that comes back.

    Raises:
        AssertionError: It has not changed for long, and is not; the message has the last answer.
    """
    standstill = Standstill()
    while (answer := look()) != expected:
        standstill.seen(answer)
        standstill.check(repr(expected))
        time.sleep(0.1)


def until(look: Callable[[], Any], what: str = "it") -> Any:
    """Look until there is something, and return it; ``what`` is for the error."""
    standstill = Standstill()
    while not (answer := look()):
        standstill.seen(answer)
        standstill.check(what)
        time.sleep(0.1)
    return answer
