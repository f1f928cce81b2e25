"""The checks before a cluster at a cloud is created; each cloud lists its own."""

from abc import ABC, abstractmethod

from clouds.tags import Tags
from kitlib.clusters.preflight import Check, Probe, Report, failed, ok, run, warn


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
        """Return what follows from that there is a cluster of this name.

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
