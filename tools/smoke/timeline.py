"""Record the start and duration of each part of a run: notebooks, clusters and waits.

Lanes record spans; the report draws them.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NOTEBOOK, CLUSTER, WAITING = "notebook", "cluster", "waiting"
SHORT = 0.5  # seconds; shorter waits are not recorded


@dataclass(frozen=True)
class Span:
    """One part of a run.

    Attributes:
        kind: ``NOTEBOOK``, ``CLUSTER`` (creating or deleting one) or ``WAITING``.
        name: The notebook, or the operation.
        lane: From 1.
        start: Seconds since the start of the run.
        seconds: The duration.
    """

    kind: str
    name: str
    lane: int
    start: float
    seconds: float

    def as_dict(self) -> dict[str, object]:
        """Convert it for ``result.json``."""
        return asdict(self) | {"start": round(self.start, 1), "seconds": round(self.seconds, 1)}


class Timeline:
    """The spans of a run, starting now."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.spans: list[Span] = []

    @property
    def seconds(self) -> float:
        """The duration of the run so far."""
        return time.monotonic() - self.began

    @contextmanager
    def span(self, kind: str, name: str, *, lane: int) -> Iterator[float]:
        """Record the start and duration of a block, even if it fails."""
        start = self.seconds
        try:
            yield start
        finally:
            seconds = self.seconds - start
            if kind != WAITING or seconds >= SHORT:
                self.spans.append(Span(kind, name, lane, start, seconds))


def read_setup(folder: Path) -> dict[str, float]:
    """Return the seconds of each part of the setup before this run, and delete its file, ``setup.json``.

    So a later run without a setup does not report it again.
    """
    path = folder / "setup.json"
    try:
        setup = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    path.unlink()
    return {str(part["name"]): float(part["seconds"]) for part in setup["parts"]}
