"""A cause: why a run has failed, waits or hangs; and a diagnosis, which is a run's causes in order. Pure."""

from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from kitlib.causes.collectives import last_calls
from kitlib.causes.processes import RankState
from kitlib.display.tables import printable
from kitlib.errors import plain
from kitlib.k8s.pods import display_name

if TYPE_CHECKING:
    from kitlib.widgets.plots import Picture

# How sure a rule is: the API or the node says so; the evidence fits best; it may be the reason.
CERTAIN, LIKELY, POSSIBLE = 3, 2, 1
CONSEQUENCE = 0  # of another cause: listed only if no rule finds that cause
LONGEST = 400  # characters of a message or an error; the evidence or the detail has all of it


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why something failed, waits or hangs.

    Attributes:
        kind: The kind of cause in one word, as `docs/why.md` lists it: ``OOMKilled``, ``Unschedulable`` …
        who: Rank, pod, container or node: ``rank 1``, ``pod digits-1``, ``node node-2``.
        what: What happened to it, as a clause: ``was killed for its memory``.
        fix: What to do: a command that works here, or a change.
        evidence: Of the API, the node or the log: an event, an exit code, the last lines, a stack.
        ruled_out: What it is not, and the consequences that look like causes.
        certainty: `CERTAIN`, `LIKELY`, `POSSIBLE` or `CONSEQUENCE`.
        time: When it happened, RFC 3339; empty where no clock says so.
        rank: The rank, or the replica of a parameter server.
        detail: Lines to read in full: a traceback, or the last lines of a log.
    """

    kind: str
    who: str
    what: str
    fix: str
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    certainty: int = LIKELY
    time: str = ""
    rank: int | str | None = None
    detail: str = ""

    @property
    def line(self) -> str:
        """Who and what, in one line."""
        return " ".join(f"{self.who} {self.what}".split())

    def __str__(self) -> str:
        return printable("\n".join(f"{name}{text}" for name, text in self._parts()))

    __repr__ = __str__

    def _parts(self) -> list[tuple[str, str]]:
        parts = [("", self.line)]
        parts += [("  evidence: ", text.replace("\n", "\n            ")) for text in self.evidence]
        parts += [("  not:      ", text) for text in self.ruled_out]
        return [*parts, ("  try:      ", plain(self.fix))] if self.fix else parts

    def _repr_html_(self) -> str:
        pre = "style='white-space:pre-wrap'"
        items = (
            f"<dt>{escape(name.strip(' :'))}</dt><dd {pre}>{escape(printable(text))}</dd>"
            for name, text in self._parts()[1:]
        )
        return f"<b>{escape(printable(self.line))}</b><dl style='margin:0 0 1em'>{''.join(items)}</dl>"


def shorten(text: str) -> str:
    """Write a message or an error on one line of a few hundred characters."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


@dataclass(frozen=True)
class Diagnosis:
    """The causes of a run's state.

    Attributes:
        about: The run.
        status: Its status, as text.
        causes: The most certain and earliest first; empty if nothing is wrong.
        unread: What could not be read, and why: kinds without permission, ranks without collectives.
        ranks: What the ranks of a running run do, if their processes were inspected.

    Example:
        >>> run.why()
        Failed: rank 1 was killed for its memory (OOMKilled)
          evidence: container pytorch of pod digits-1: exit code 137, OOMKilled; its limit is 256Mi
          not:      rank 0 lost its connection to another rank: a consequence
          try:      memory="512Mi", or smaller batches
    """

    about: str
    status: str
    causes: tuple[Cause, ...] = ()
    unread: tuple[str, ...] = ()
    ranks: tuple[RankState, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.causes)

    @property
    def first(self) -> Cause | None:
        """The first cause; None if nothing is wrong."""
        return self.causes[0] if self.causes else None

    @property
    def line(self) -> str:
        """The first cause in one line; empty if nothing is wrong."""
        return self.causes[0].line if self.causes else ""

    def plot(self) -> "Picture | None":
        """Draw where the ranks of a hang are: its last collectives per rank; None if no rank reported any.

        Example:
            >>> run.why().plot().save("hang.png")
        """
        from kitlib.widgets.collectives_plot import (
            RankRow,
            plot_collectives,
        )  # matplotlib takes half a second

        waiting = [state.pending for state in self.ranks if state.pending]
        if not waiting:
            return None
        first = max(waiting, key=lambda call: sum(peer.group == call.group for peer in waiting))
        rows = []
        for state in self.ranks:
            calls = last_calls(state, first.group)
            pending = frozenset(number for number, call in calls.items() if call.is_pending)
            ops = {number: call.op for number, call in calls.items()}
            location = "paused" if state.state in "Tt" else state.location
            rows.append(RankRow(display_name(state.rank), ops, pending, location))
        return plot_collectives(rows, group=first.group_name, title=self.line)

    def json(self) -> dict[str, Any]:
        """Convert to a dict of JSON types."""
        causes = [asdict(cause) | {"fix": plain(cause.fix)} for cause in self.causes]
        return asdict(self) | {"causes": causes}

    def __repr__(self) -> str:
        phase = self.status.partition(":")[0]
        if not self.causes:
            return printable(f"nothing is wrong: {self.status}")
        texts = [f"{phase}: {self.causes[0]}", *(f"also: {cause}" for cause in self.causes[1:])]
        return printable("\n".join(texts))

    def _repr_html_(self) -> str:
        if not self.causes:
            return f"<em>nothing is wrong: {escape(printable(self.status))}</em>"
        phase = self.status.partition(":")[0]
        picture = self.plot()
        image = (
            f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{picture.bundle()["image/png"]}">'
            if picture
            else ""
        )
        return f"<p>{escape(phase)}</p>" + "".join(cause._repr_html_() for cause in self.causes) + image
