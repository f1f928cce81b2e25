"""Looking before anything is paid for: checks that each say what they found and what would mend it.

Whatever fails is shown at once, not one after the other. What is checked is each cloud's own, in `aws` and
`google`; here are only what a check is, how all of them run, whose a name is, and the one error.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.errors import KitError, PreflightFailed


class Level(StrEnum):
    """What came out of a check."""

    OK = "ok"
    WARN = "warn"  # it may go wrong, or could not be looked at
    FAILED = "failed"  # it will go wrong


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        name: What was looked at: ``quota``, ``zones``.
        level: What came out.
        words: What was found.
        fix: The link or the command that mends it.
    """

    name: str
    level: Level
    words: str
    fix: str = ""


def ok(name: str, words: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, Level.OK, words)


def warn(name: str, words: str, fix: str) -> Check:
    """Return a check that found what may go wrong."""
    return Check(name, Level.WARN, words, fix)


def failed(name: str, words: str, fix: str) -> Check:
    """Return a check that found what will go wrong."""
    return Check(name, Level.FAILED, words, fix)


@dataclass(frozen=True)
class Probe:
    """A question to be asked.

    Attributes:
        name: Of the check.
        ask: Returns what was found, in one check or several.
        needed: Whether an error that it raises is a failure; else it is a warning, because that something
            could not be looked at keeps nobody from starting.
        stops: After its failure the rest cannot be asked, as without credentials.
    """

    name: str
    ask: Callable[[], Check | Iterable[Check]]
    needed: bool = True
    stops: bool = False


@dataclass(frozen=True)
class Report:
    """What all the checks found; shows itself as a table.

    Attributes:
        about: What was going to be made: ``cluster "lab" in us-west-2``.
        checks: In the order in which they were asked.
    """

    about: str
    checks: tuple[Check, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """Those that failed."""
        return tuple(each for each in self.checks if each.level is Level.FAILED)

    def table(self) -> Table:
        """Return a row a check."""
        rows = [(each.name, each.level.value, each.words, each.fix) for each in self.checks]
        return Table(("check", "result", "found", "to mend it"), rows, empty="nothing was checked")

    def raise_failures(self) -> "Report":
        """Return the report if nothing failed.

        Raises:
            PreflightFailed: With all that failed, and what would mend each.
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


def run(probes: Iterable[Probe], *, about: str) -> Report:
    """Ask all, and return what they found; nothing is raised for what is wrong.

    Args:
        probes: In the order in which they are asked.
        about: What is going to be made.
    """
    checks: list[Check] = []
    with progress(f"preflight of {about}") as line:
        for probe in probes:
            line.update(probe.name)
            found = _ask(probe)
            checks += found
            if probe.stops and any(each.level is Level.FAILED for each in found):
                break
        bad = sum(each.level is Level.FAILED for each in checks)
        line.done(f"{len(checks)} checks, {bad} failed")
    return Report(about, tuple(checks))


def _ask(probe: Probe) -> list[Check]:
    checks: list[Check] = []
    try:
        found = probe.ask()
        for each in [found] if isinstance(found, Check) else found:
            checks.append(each)  # one may be found before the next raises
    except KitError as error:
        if probe.needed:
            return [*checks, failed(probe.name, error.what, error.fix)]
        return [*checks, warn(probe.name, f"it could not be looked at: {error.what}", error.fix)]
    return checks
