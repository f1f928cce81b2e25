"""From samples to values, ratios and verdicts. Pure: numbers in, numbers out.

How results look to people is in ``table.py``.
"""

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

MET, MISSED, UNJUDGED = "met", "missed", "not judged"


@dataclass(frozen=True)
class Limit:
    """The most that a ratio, or our own value, may be.

    Example:
        >>> str(Limit(0.8)), str(Limit(100, of="value", unit="ms"))
        ('≤ 0.8 × peer', '≤ 100 ms')
    """

    most: float
    of: Literal["ratio", "value"] = "ratio"
    unit: str = ""

    def __str__(self) -> str:
        return f"≤ {self.most:g} × peer" if self.of == "ratio" else f"≤ {self.most:g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Result:
    """One line of the table: what was measured here and at the peer, a sample a round.

    Attributes:
        what: For people.
        unit: Of all samples.
        ours: Samples of this kit.
        peer: What it is compared with; empty where there is nothing to compare with.
        theirs: Samples of the peer.
        absent: Why the peer has no samples.
        limit: The goal, if there is one.
        notes: What a reader must know to judge the line.
        details: More raw figures, kept in the JSON alone.
    """

    what: str
    unit: str
    ours: tuple[float, ...]
    peer: str = ""
    theirs: tuple[float, ...] = ()
    absent: str = ""
    limit: Limit | None = None
    notes: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The median of our samples."""
        return statistics.median(self.ours)

    @property
    def peer_value(self) -> float | None:
        """The median of the peer's samples."""
        return statistics.median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        """Our value as a share of the peer's; less is better."""
        return self.value / self.peer_value if self.peer_value else None

    @property
    def verdict(self) -> str:
        """Whether the limit is met; without a peer a ratio is not judged."""
        if self.limit is None:
            return ""
        measured = self.value if self.limit.of == "value" else self.ratio
        if measured is None:
            return UNJUDGED
        return MET if measured <= self.limit.most else MISSED

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "peer": self.peer or None,
            "peer_value": self.peer_value,
            "peer_absent": self.absent or None,
            "ratio": self.ratio,
            "limit": str(self.limit) if self.limit else None,
            "verdict": self.verdict or None,
            "notes": self.notes or None,
            "samples": {"ours": list(self.ours), "peer": list(self.theirs)},
            "details": self.details,
        }
