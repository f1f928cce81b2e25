"""The writes that the API server has acknowledged and must still have at the end.

A request without a response may have been executed, so an object can have several possible contents until a
later request is acknowledged. Updates contain the version that they change, so a delayed request fails after
the next one and cannot undo it.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[str, str, str]  # namespace, kind, name
ABSENT = None


@dataclass
class Entry:
    """An object that was requested.

    Attributes:
        possible: The contents that it may have; `ABSENT` if it may not exist.
        settled: Whether no further requests are sent, as a deletion without a response may still be executed.
    """

    possible: set[str | None] = field(default_factory=lambda: {ABSENT})
    settled: bool = False


class Ledger:
    """The objects of all attendees; used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Key, Entry] = {}
        self.acknowledged = self.unanswered = 0

    def sent(self, key: Key, content: str | None) -> None:
        """Record a request before it is sent; `ABSENT` deletes."""
        with self._lock:
            self._entries.setdefault(key, Entry()).possible.add(content)

    def answered(self, key: Key, content: str | None) -> None:
        """Record that the API server has acknowledged it."""
        with self._lock:
            entry = self._entries[key]
            entry.possible, entry.settled = {content}, content is ABSENT
            self.acknowledged += 1

    def refused(self, key: Key, content: str | None, states: set[str | None]) -> None:
        """Record that the API server has rejected it, so that the earlier states remain possible."""
        with self._lock:
            self._entries[key].possible = set(states)

    def lost(self, key: Key, content: str | None) -> None:
        """Record that there was no response."""
        with self._lock:
            self._entries[key].settled = content is ABSENT
            self.unanswered += 1

    def possible(self, key: Key) -> set[str | None]:
        """Return the contents that an object may have."""
        with self._lock:
            return set(self._entries[key].possible) if key in self._entries else {ABSENT}

    def usable(self, namespace: str, kind: str) -> list[str]:
        """Return the names of objects that exist and may be changed, oldest first."""
        with self._lock:
            return [
                key[2]
                for key, entry in self._entries.items()
                if key[:2] == (namespace, kind) and not entry.settled and ABSENT not in entry.possible
            ]

    def check(self, stored: Mapping[Key, str]) -> list[str]:
        """Compare with the existing objects; describe what is lost, changed or not deleted."""
        problems = []
        with self._lock:
            for key, entry in self._entries.items():
                if stored.get(key, ABSENT) not in entry.possible:
                    actual = "does not exist" if key not in stored else f"contains {stored[key]!r}"
                    expected = " or ".join(
                        "nothing" if value is ABSENT else repr(value) for value in entry.possible
                    )
                    problems.append(f"{'/'.join(key)} {actual}, expected {expected}")
            problems += [
                f"{'/'.join(key)} was never requested" for key in stored.keys() - self._entries.keys()
            ]
        return problems
