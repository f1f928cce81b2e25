"""A preflight: checks made before a cluster is created, each with its result and how to fix it.

All failures are reported together. The checks themselves are each provider's own.
"""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kitlib import config
from kitlib.display.progress import progress
from kitlib.display.tables import Table
from kitlib.errors import KitError, PreflightFailed, plain


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # it may fail, or could not be checked
    FAILED = "failed"  # it will fail


@dataclass(frozen=True)
class Check:
    """A check and its result: what was checked, what was found, and the link or command that fixes it."""

    name: str
    level: Level
    message: str
    fix: str = ""


def ok(name: str, words: str) -> Check:
    return Check(name, Level.OK, words)


@dataclass(frozen=True)
class Report:
    """All checks of a preflight, in their order; displays itself as a table."""

    about: str
    checks: tuple[Check, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.level is Level.FAILED)

    def table(self) -> Table:
        rows = [(check.name, check.level.value, check.message, plain(check.fix)) for check in self.checks]
        return Table(("check", "result", "found", "how to fix it"), rows, empty="nothing was checked")

    def raise_failures(self) -> "Report":
        """Return the report itself, or raise PreflightFailed with all failures, and how to fix each."""
        if self.ok:
            return self
        count = f"{len(self.failures)} problems prevent it: " if self.failures[1:] else ""
        raise PreflightFailed(
            count + "; ".join(f"{failure.name}: {failure.message}" for failure in self.failures),
            about=f"{self.about}; nothing was made",
            fix="\n".join(dict.fromkeys(failure.fix for failure in self.failures if failure.fix)),
        )

    def __repr__(self) -> str:
        return f"{self.about}\n{self.table()!r}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def warn(name: str, words: str, fix: str) -> Check:
    return Check(name, Level.WARN, words, fix)


def failed(name: str, words: str, fix: str) -> Check:
    return Check(name, Level.FAILED, words, fix)


@dataclass(frozen=True)
class Probe:
    """A check to run.

    Attributes:
        ask: Runs it; returns one result or several.
        needed: Whether an error that it raises is a failure; otherwise it is a warning.
        stops: After its failure the other checks cannot run, as without credentials.
    """

    name: str
    ask: Callable[[], Check | Iterable[Check]]
    needed: bool = True
    stops: bool = False


def run(probes: Iterable[Probe], *, about: str) -> Report:
    """Run all checks, one after the other; nothing is raised for what is wrong."""
    checks: list[Check] = []
    with progress(f"preflight of {about}") as line:
        for probe in probes:
            line.update(probe.name)
            report = _ask(probe)
            checks += report
            if probe.stops and any(check.level is Level.FAILED for check in report):
                break
        bad = sum(check.level is Level.FAILED for check in checks)
        line.done(f"{len(checks)} checks, {bad} failed")
    return Report(about, tuple(checks))


def _ask(probe: Probe) -> list[Check]:
    checks: list[Check] = []
    try:
        answer = probe.ask()
        for check in [answer] if isinstance(answer, Check) else answer:
            checks.append(check)  # one may be found before the next raises
    except KitError as error:
        if probe.needed:
            checks.append(failed(probe.name, error.what, error.fix))
        else:
            checks.append(warn(probe.name, f"it could not be checked: {error.what}", error.fix))
    return checks


def trainer_image(file: Path | None = None) -> Check:
    """Name the image that pods have, or the builder where a program needs more than PyTorch's own has."""
    about, chosen = "trainer image", config.read().image
    if chosen:
        return ok(about, f"{chosen}, as TRAINYARD_IMAGE says")
    file = file or config.find("images/trainer/published.toml")
    published = tomllib.loads(file.read_text(encoding="utf-8"))
    if published["digest"]:
        name = f"{published['name']}@{published['digest']}"
        return ok(
            about, f"published, for amd64 and arm64: TRAINYARD_IMAGE={name}; else {config.DEFAULT_IMAGE}"
        )
    state = "none is published yet: kit.build_image(cluster=cluster) builds it in the cluster"
    return ok(about, f"{config.DEFAULT_IMAGE}; of the kit's own, with all that its trainers import, {state}")
