"""A process that dies at a request of a test's choice: before it is sent, or when it has taken effect.

What the process asks after that is not sent either. Which request is the n-th is exact where they are sent
one after another.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class ProcessKilled(BaseException):
    """The process that asked is dead."""


@dataclass
class ProcessLife:
    """How far one process comes.

    Attributes:
        dies_at: The number of the request, from 0; None lives on.
        when: ``before`` or ``after`` it took effect.
        counts: Which requests are counted; by default all.
        requests: What was asked, in order.
    """

    dies_at: int | None = None
    when: str = "after"
    counts: Callable[[str], bool] = lambda request: True
    requests: list[str] = field(default_factory=list)
    counted: int = 0
    dead: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, what: str) -> int:
        """Note a request, and return its number; -1 for one that is not counted.

        Raises:
            ProcessKilled: The process is dead, or dies before it has sent it.
        """
        with self._lock:
            if self.dead:
                raise ProcessKilled
            self.requests.append(what)
            if not self.counts(what):
                return -1
            number, self.counted = self.counted, self.counted + 1
            if number == self.dies_at and self.when == "before":
                self.dead = True
                raise ProcessKilled
            return number

    def end(self, number: int) -> None:
        """Note that a request took effect.

        Raises:
            ProcessKilled: The process is dead by now.
        """
        with self._lock:
            self.dead = self.dead or (number == self.dies_at and self.when == "after")
            if self.dead:
                raise ProcessKilled
