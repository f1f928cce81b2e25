"""The processes of ranks, as the node's kernel and the ranks themselves report them. Pure.

`probe` reads them, in a pod by exec; it changes nothing there. The collectives are in `collectives`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kitlib import config
from kitlib.causes.collectives import Collective, Group, is_collective, read_collectives, read_groups

# With its folder on PYTHONPATH, each rank reports to `probe` which collective it is in.
RANKS = config.DATA / "programs" / "ranks" / "sitecustomize.py"
COMPUTES = 0.1  # of a core; low, as a pod may have a CPU limit
PROBE = (config.DATA / "programs" / "probe.py").read_text(encoding="utf-8")
COMMAND = ("sh", "-c", 'exec "$(command -v python3 || command -v python)" -c "$0"', PROBE)
_FRAME = re.compile(r"^\s+(\S+) \((\S+):(\d+)\)", re.MULTILINE)  # of py-spy
_LAUNCHER = re.compile(r"torchrun|torch\.distributed\.run|elastic_launch\.py")
_LIBRARY = re.compile(
    r"-packages/|/lib/python3|/lib/\w+/python3|^torch/|<frozen|<string>|^threading\.py|/_trainyard/|/ranks/site"
)


class Frame(NamedTuple):
    """A frame of a stack, as Python and py-spy list it, the innermost first."""

    function: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True)
class Joining:
    """The rendezvous of a rank that is in ``init_process_group``.

    Attributes:
        rank: The rank that it passes.
        world_size: The number of ranks that it waits for.
        address: Host and port of the store that it waits for; empty once it has reached the store.
    """

    rank: int
    world_size: int
    address: str = ""


@dataclass(frozen=True)
class RankState:
    """The state of a rank's process.

    Attributes:
        rank: Its rank.
        pid: Its process ID in its pod.
        state: As in ``ps``: ``R`` runs, ``S`` sleeps, ``D`` waits for a disk, ``T`` stopped, ``Z`` ended.
        cpu: Cores that it uses.
        helpers: The states of its child processes, such as data loader workers, by process ID.
        waits: The kernel function in which its main thread sleeps.
        stack: The stack of its main thread; empty if it was not readable.
        groups: Its process groups, by their names in torch.
        collectives: Its last collectives from torch's flight recorder, the oldest first.
        time: When it answered, in seconds by its node's clock; 0 if it did not answer.
        missing: Why its collectives are missing.
        joining: What it waits for, if it is in ``init_process_group``.
        world_size: The number of ranks that its launcher starts; 0 if unknown.
    """

    rank: int | str
    pid: int
    state: str
    cpu: float
    helpers: Mapping[int, str]
    waits: str = ""
    stack: tuple[Frame, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    time: float = 0.0
    missing: str = ""
    joining: Joining | None = None
    world_size: int = 0

    @property
    def line(self) -> str:
        """The program's own line: ``train.py:41``."""
        return next((str(frame) for frame in self.stack if not _LIBRARY.search(frame.path)), "")

    @property
    def call(self) -> str:
        """The collective or the send that its main thread is in."""
        return next((frame.function for frame in self.stack if is_collective(frame.function)), "")

    @property
    def pending(self) -> Collective | None:
        """The oldest collective that it has called and that is not complete."""
        return next((call for call in self.collectives if call.is_pending), None)

    @property
    def location(self) -> str:
        """The collective with its number, and the program's own line: ``all_reduce #118 of train.py:41``."""
        call, line = self.pending.name if self.pending else self.call, self.line
        return f"{call} of {line}" if call and line else line or call

    @property
    def trace(self) -> str:
        """Its stack as Python prints one."""
        return "\n".join(
            f'  File "{path}", line {line}, in {name}' for name, path, line in reversed(self.stack)
        )


def read_states(output: str, rank: int | str) -> Iterator[RankState]:
    """Parse the output of `probe` in the pod of a node rank: the process of each rank in it."""
    rows: list[dict[str, Any]] = json.loads(output)
    launchers = [row for row in rows if _LAUNCHER.search(row["command"])]
    python = [row for row in rows if "python" in row["command"] and row not in launchers]
    if launchers:  # the processes that it started have ranks
        python = [row for row in python if row["rank"]]
    answering = [row for row in rows if row.get("report") or row.get("answers")]
    ranks = answering + [row for row in python if row["local"] and row not in answering]
    ranks = ranks or [row for row in python if row["rank"]] or python
    pids = {row["pid"] for row in ranks}
    for row in ranks:
        report = row.get("report") or {}
        if row["parent"] in pids and not row.get("answers"):
            continue
        helpers = {helper["pid"]: helper["state"] for helper in rows if helper["parent"] == row["pid"]}
        own = int(row["rank"]) if row["rank"].isdigit() else rank
        dump = row["stack"]
        stack = report.get("stack") or [
            (name, path, int(line))
            for name, path, line in _FRAME.findall(dump.partition('"MainThread"')[2] or dump)
        ]
        yield RankState(
            own if report.get("rank") is None else report["rank"],
            row["pid"],
            row["state"],
            row["cpu"],
            helpers,
            row["waits"],
            tuple(Frame(*frame) for frame in stack),
            read_groups(report),
            read_collectives(report),
            report.get("time", 0.0),
            "; ".join(report.get("missing", ())),
            _joining(report.get("joins") or {}),
            int(row.get("world_size") or 0),
        )


def _joining(values: dict[str, Any]) -> Joining | None:
    """Read the variables of ``init_process_group``; None if it does not run, or does not know them yet."""
    if values.get("world_size", -1) < 1:
        return None
    address = f"{values['hostname']}:{values['port']}" if "hostname" in values else ""
    return Joining(values["rank"], values["world_size"], address)
