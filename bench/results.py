"""From samples to values, ratios and verdicts. Pure: numbers in, numbers out.

``table.py`` prints them.
"""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MET, MISSED, UNJUDGED = "met", "missed", "not judged"
SMALLEST_RATIO = 0.01  # that is published as a number


@dataclass(frozen=True)
class Limit:
    """The maximum, or with ``at="least"`` the minimum, of a ratio or our value.

    Example:
        >>> str(Limit(0.8)), str(Limit(100, of="value", unit="ms")), str(Limit(1.5, at="least"))
        ('≤ 0.8 × peer', '≤ 100 ms', '≥ 1.5 × peer')
    """

    bound: float
    of: Literal["ratio", "value"] = "ratio"
    unit: str = ""
    at: Literal["most", "least"] = "most"

    def __str__(self) -> str:
        unit = "× peer" if self.of == "ratio" else self.unit
        return f"{'≤' if self.at == 'most' else '≥'} {self.bound:g} {unit}".rstrip()

    def holds(self, measured: float) -> bool:
        """Check whether a figure is within the limit."""
        return measured <= self.bound if self.at == "most" else measured >= self.bound


@dataclass(frozen=True)
class Result:
    """A row of the table: the samples of this kit and its peer, one per round.

    Attributes:
        what: A readable description.
        unit: The unit of all samples.
        ours: Samples of this kit.
        peer: The name of the peer; empty without one.
        theirs: Samples of the peer.
        absent: Why the peer has no samples.
        limit: The goal, if there is one.
        notes: Information needed to interpret the row.
        details: Further raw figures, only in the JSON.
        timeout: The time limit for the peer, after which a sample is a lower bound; 0 for none.
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
    timeout: float = 0

    @property
    def peer_text(self) -> str:
        """The peer's value as text; empty without samples."""
        if self.peer_value is None:
            return ""
        if self.timeout and self.peer_value >= self.timeout:
            return f"gave up at {number(self.timeout, self.unit)}"
        return number(self.peer_value, self.unit)

    @property
    def ratio_text(self) -> str:
        """The ratio as text; an upper bound if the peer timed out, or if two digits would say zero."""
        if self.ratio is None:
            return ""
        timed_out = self.timeout and (self.peer_value or 0) >= self.timeout
        is_bound = timed_out or self.ratio < SMALLEST_RATIO
        return f"< {max(self.ratio, SMALLEST_RATIO):.2f}" if is_bound else f"{self.ratio:.2f}"

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
        """Our value divided by the peer's: lower is better for times, higher for speeds."""
        return self.value / self.peer_value if self.peer_value else None

    @property
    def verdict(self) -> str:
        """Whether the limit is met; without a peer a ratio is not judged."""
        if self.limit is None:
            return ""
        measured = self.value if self.limit.of == "value" else self.ratio
        if measured is None:
            return UNJUDGED
        return MET if self.limit.holds(measured) else MISSED

    @property
    def goal(self) -> float | None:
        """Our value at the limit; None without a limit, or without the peer that it refers to."""
        if self.limit is None:
            return None
        if self.limit.of == "value":
            return self.limit.bound
        return self.limit.bound * self.peer_value if self.peer_value else None

    @property
    def share_of_goal(self) -> float | None:
        """The share of the goal that is used: at most 1 if it is met, for times and speeds."""
        if not self.limit or not self.goal or not self.value:
            return None
        return self.value / self.goal if self.limit.at == "most" else self.goal / self.value

    def as_dict(self) -> dict[str, Any]:
        """Convert it for JSON."""
        return {
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "peer": self.peer or None,
            "peer_value": self.peer_value,
            "peer_absent": self.absent or None,
            "ratio": self.ratio,
            "limit": asdict(self.limit) if self.limit else None,
            "verdict": self.verdict or None,
            "notes": self.notes or None,
            "timeout": self.timeout,
            "samples": {"ours": list(self.ours), "peer": list(self.theirs)},
            "details": self.details,
        }


def number(value: float, unit: str) -> str:
    """Format a value with three significant digits and its unit."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit.split()[0]}"
