"""A preflight: checks before a cluster is created or used, each with its result and how to fix it.

All failures are reported together. Each provider has its own checks; those of a cluster that exists are in
`cluster_checks`.
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
    """A check with its result, and the link or command that fixes it."""

    name: str
    level: Level
    message: str
    fix: str = ""


def ok(name: str, message: str, fix: str = "") -> Check:
    return Check(name, Level.OK, message, fix)


def warn(name: str, message: str, fix: str) -> Check:
    return Check(name, Level.WARN, message, fix)


def failed(name: str, message: str, fix: str) -> Check:
    return Check(name, Level.FAILED, message, fix)


@dataclass(frozen=True)
class Report:
    """All checks of a preflight, in order; displayed as a table."""

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
        return Table(("check", "result", "details", "how to fix it"), rows, empty="nothing was checked")

    def raise_failures(self) -> "Report":
        """Return the report, or raise PreflightFailed with all failures and their fixes."""
        if self.ok:
            return self
        count = f"{len(self.failures)} problems prevent it: " if self.failures[1:] else ""
        raise PreflightFailed(
            count + "; ".join(f"{failure.name}: {failure.message}" for failure in self.failures),
            about=f"{self.about}; nothing was created",
            fix="\n".join(dict.fromkeys(failure.fix for failure in self.failures if failure.fix)),
        )

    def __repr__(self) -> str:
        return f"{self.about}\n{self.table()!r}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True)
class Probe:
    """A check to run.

    Attributes:
        check: Returns one result or several.
        required: Whether an error that it raises is a failure; otherwise it is a warning.
        blocking: Whether the checks after it cannot run if it fails, as without credentials.
    """

    name: str
    check: Callable[[], Check | Iterable[Check]]
    required: bool = True
    blocking: bool = False


def run(probes: Iterable[Probe], *, about: str) -> Report:
    """Run all checks, one after the other; failures are reported, not raised."""
    checks: list[Check] = []
    with progress(f"preflight of {about}") as line:
        for probe in probes:
            line.update(probe.name)
            results = _run(probe)
            checks += results
            if probe.blocking and any(check.level is Level.FAILED for check in results):
                break
        failures = sum(check.level is Level.FAILED for check in checks)
        line.done(f"{len(checks)} checks, {failures} failed")
    return Report(about, tuple(checks))


def _run(probe: Probe) -> list[Check]:
    checks: list[Check] = []
    try:
        results = probe.check()
        for check in [results] if isinstance(results, Check) else results:
            checks.append(check)  # kept if a generator raises later
    except KitError as error:
        if probe.required:
            checks.append(failed(probe.name, error.what, error.fix))
        else:
            checks.append(warn(probe.name, f"it could not be checked: {error.what}", error.fix))
    return checks


def trainer_image(file: Path | None = None) -> Check:
    """Report the image of training pods, and how to get one with the trainers' dependencies."""
    about, image = "trainer image", config.read().image
    if image:
        return ok(about, f"{image}, set by TRAINYARD_IMAGE")
    file = file or config.find("images/trainer/published.toml")
    published = tomllib.loads(file.read_text(encoding="utf-8"))
    if published["digest"]:
        name = f"{published['name']}@{published['digest']}"
        text = f"published, for amd64 and arm64: TRAINYARD_IMAGE={name}; otherwise {config.DEFAULT_IMAGE}"
        return ok(about, text)
    text = (
        f"{config.DEFAULT_IMAGE}; the kit's own, with all dependencies of its trainers, is not published yet"
    )
    return ok(about, text, "`kit.build_image(cluster=cluster)` builds it in the cluster")
