"""The checks before a cluster at a cloud is created; each cloud lists its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clouds.tags import Tags
from kitlib.clusters.checks import Check, Level, Report, ok
from kitlib.display.progress import progress
from kitlib.errors import KitError


def warn(name: str, words: str, fix: str) -> Check:
    """Build a check whose finding may cause a failure."""
    return Check(name, Level.WARN, words, fix)


def failed(name: str, words: str, fix: str) -> Check:
    """Build a check that failed."""
    return Check(name, Level.FAILED, words, fix)


@dataclass(frozen=True)
class Probe:
    """A check to run.

    Attributes:
        name: Of the check.
        ask: Runs it; returns one result or several.
        needed: Whether an error that it raises is a failure; otherwise it is a warning.
        stops: After its failure the other checks cannot run, as without credentials.
    """

    name: str
    ask: Callable[[], Check | Iterable[Check]]
    needed: bool = True
    stops: bool = False


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


class ClusterPreflight(ABC):
    """The checks of one cluster that is planned.

    Args:
        plan: The cluster, in its cloud's words: with a session, and with tags.
        where: Its region or zone.

    Attributes:
        there: Whether the cluster is there already, and the kit's: known when its name was looked at.
    """

    kind: str  # of clusters, with its article

    def __init__(self, plan, where: str) -> None:
        self.plan, self.session, self.where, self.there = plan, plan.session, where, False

    @abstractmethod
    def probes(self) -> list[Probe]:
        """Return the questions in the order in which they are asked."""

    def report(self) -> Report:
        """Ask all of them, and return what was found."""
        return run(self.probes(), about=f'cluster "{self.plan.tags.cluster}" in {self.where}')

    def taken(self, whose: Tags | None) -> Check:
        """Judge an existing cluster of this name.

        Args:
            whose: Its tags, if it has the kit's.
        """
        name, mine = self.plan.tags.cluster, self.plan.tags
        if whose is None or whose.cluster != name:
            words = f'there is {self.kind} "{name}" in {self.where}, and it is not the kit\'s'
            return failed("name", words, f'name="{name}-2"')
        self.there = True
        if whose.owner != mine.owner:
            words = f"{name} is there already: {whose.owner} made it"
            return warn("name", words, "go on with it, or name another")
        return ok("name", f"{name} is there already, made by {whose.owner}, and is gone on with")
