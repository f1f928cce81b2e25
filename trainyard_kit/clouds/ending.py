"""The end of a cluster, at which the cloud deletes it by itself: how it is announced.

The schedules that delete it are each cloud's own.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from kitlib.errors import KitError

LAST_HOUR = timedelta(hours=1)
LOOK_SECONDS = 900.0  # somebody else may extend the cluster, or shorten its life
JOIN_SECONDS = 2.0


def notice(end: datetime | None, cloud: str) -> str:
    """Say when the cloud deletes a cluster, and how to put that off; urgent in its last hour."""
    if end is None:
        return ""
    minutes = int((end - datetime.now(UTC)).total_seconds() // 60)
    if minutes < 0:
        return f"is past its end, {end:%Y-%m-%d %H:%M} UTC: {cloud} is deleting it"
    left = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
    urgent = "WARNING: less than an hour is left; " if minutes < 60 else ""
    how = f"{cloud} then deletes it and what is on it; cluster.extend(hours=2) puts that off"
    return f"ends at {end:%Y-%m-%d %H:%M} UTC, in {left}: {urgent}{how}"


class EndReminder(AbstractContextManager["EndReminder"]):
    """Announces the end once, in the last hour, from a thread, while something is waited for."""

    def __init__(self, end: Callable[[], datetime | None], announce: Callable[[], object]) -> None:
        self._end, self._announce, self._over = end, announce, threading.Event()
        self._thread = threading.Thread(target=self._run, name="end-of-cluster", daemon=True)

    def __enter__(self) -> "EndReminder":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(JOIN_SECONDS)  # a request to the cloud may be under way

    def _run(self) -> None:
        left = 0.0
        while not self._over.wait(left):
            try:
                if (end := self._end()) is None:
                    return
                left = min((end - LAST_HOUR - datetime.now(UTC)).total_seconds(), LOOK_SECONDS)
                if left <= 0:
                    self._announce()
                    return
            except KitError:  # of a network that is away for a while, for one
                left = LOOK_SECONDS
