"""The report of a preflight: checks made before a cluster is created, each with its result and how to fix it.

All failures are reported together. The checks themselves are each provider's own.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from kitlib.display.tables import Table
from kitlib.errors import PreflightFailed


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"  # it may fail, or could not be checked
    FAILED = "failed"  # it will fail


@dataclass(frozen=True)
class Check:
    """A check and its result.

    Attributes:
        name: What was checked: ``quota``, ``zones``.
        level: The result.
        words: What was found.
        fix: The link or the command that fixes it.
    """

    name: str
    level: Level
    words: str
    fix: str = ""


def ok(name: str, words: str) -> Check:
    """Build a check that passed."""
    return Check(name, Level.OK, words)


@dataclass(frozen=True)
class Report:
    """All checks of a preflight; displays itself as a table.

    Attributes:
        about: What is to be created: ``cluster "lab" in us-west-2``.
        checks: In the order in which they ran.
    """

    about: str
    checks: tuple[Check, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(each for each in self.checks if each.level is Level.FAILED)

    def table(self) -> Table:
        """A row for each check."""
        rows = [(each.name, each.level.value, each.words, each.fix) for each in self.checks]
        return Table(("check", "result", "found", "how to fix it"), rows, empty="nothing was checked")

    def raise_failures(self) -> "Report":
        """Return the report itself if no check failed.

        Raises:
            PreflightFailed: With all failures, and how to fix each.
        """
        if self.ok:
            return self
        one, *more = self.failures
        count = f"{1 + len(more)} things stand in the way: " if more else ""
        raise PreflightFailed(
            count + "; ".join(f"{each.name}: {each.words}" for each in self.failures),
            about=f"{self.about}; nothing was made",
            fix="\n".join(dict.fromkeys(each.fix for each in self.failures if each.fix)),
        )

    def __repr__(self) -> str:
        return f"{self.about}\n{self.table()!r}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
