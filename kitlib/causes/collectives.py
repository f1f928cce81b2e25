"""Collectives: what each rank has called of each process group, and where ranks differ first. Pure.

Ranks of a group call the same collectives in the same order; each has a sequence number. Source of the
numbers and lines: the flight recorder of torch, which records gloo and NCCL alike.
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

DEFAULT = "default_pg"  # torch's description of the group of all ranks
SAME_SIZES = ("all_reduce", "broadcast", "reduce", "all_gather", "_allgather_base", "reduce_scatter")
_CALLS = re.compile(
    r"(all_)?(reduce|gather|scatter|to_all)(_\w+)?|reduce_scatter(_\w+)?|broadcast(_object_list)?|i?send|i?recv"
    r"|(send|recv)_object_list|batch_isend_irecv|(monitored_)?barrier|init_process_group|new_group|rendezvous"
    r"|destroy_process_group"
)


def is_collective(function: str) -> bool:
    """Check whether a function of ``torch.distributed`` waits for other ranks."""
    return bool(_CALLS.fullmatch(function))


@dataclass(frozen=True)
class Group:
    """A process group.

    Attributes:
        name: Its name in torch.
        description: The text that its creator gave it (``group_desc``).
        ranks: Its members.
    """

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """A call of a collective, or of a send or a receive, by one rank.

    Attributes:
        group: The name of its process group in torch.
        description: The description of the group.
        number: Its sequence number in the group.
        op: ``all_reduce``, ``barrier`` …
        sizes: The shapes of its inputs.
        is_pending: Whether it is incomplete.
        is_p2p: Whether it is a send or a receive, which torch numbers separately.
        time: When it was called, in seconds by its node's clock.
    """

    group: str
    description: str
    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...] = ()
    is_pending: bool = False
    is_p2p: bool = False
    time: float = 0.0

    @property
    def name(self) -> str:
        """Its name with its number, and the group if that is not the one of all ranks."""
        unnamed = self.description in ("", DEFAULT)
        return f"{self.op} #{self.number}" + ("" if unnamed else f" of {self.group_name}")

    @property
    def group_name(self) -> str:
        """Its group's name for display."""
        if self.description in ("", DEFAULT):
            return "the group of all ranks"
        return f"group {self.group if self.description == 'undefined' else self.description}"


class Rank(Protocol):
    """A rank with its known collectives: `processes`, which implements it, imports this module."""

    @property
    def rank(self) -> int | str: ...
    @property
    def groups(self) -> Mapping[str, Group]: ...
    @property
    def collectives(self) -> Sequence[Collective]: ...


@dataclass(frozen=True)
class Difference:
    """The first call of a group in which its ranks differ.

    Attributes:
        group: The group's name.
        number: The sequence number.
        calls: Of each rank that has called it.
        absent: The ranks that have not.
        kind: ``op``, ``sizes``, or ``absent``.
    """

    group: str
    number: int
    calls: Mapping[int | str, Collective]
    absent: tuple[int | str, ...] = ()
    kind: str = "absent"

    def by_call(self) -> list[tuple[Collective, list[int | str]]]:
        """List the different calls, each with its ranks, the most frequent last."""
        sorts: dict[tuple[object, ...], list[int | str]] = {}
        for rank, call in self.calls.items():
            sorts.setdefault((call.op, call.sizes if self.kind == "sizes" else ()), []).append(rank)
        pairs = [(self.calls[ranks[0]], ranks) for ranks in sorts.values()]
        return sorted(
            pairs, key=lambda pair: (len(pair[1]), -pair[1][0] if isinstance(pair[1][0], int) else 0)
        )


def differences(ranks: Sequence[Rank]) -> Iterator[Difference]:
    """Find the first difference of each group: an operation, a shape, or a call that some ranks lack."""
    for name in dict.fromkeys(call.group for rank in ranks for call in rank.collectives):
        calls = {rank.rank: last_calls(rank, name) for rank in ranks}
        groups = [rank.groups[name] for rank in ranks if name in rank.groups]
        members = set(groups[0].ranks) if groups else set(calls)
        calls = {
            rank: calls_of_rank for rank, calls_of_rank in calls.items() if rank in members or calls_of_rank
        }
        numbers = sorted({number for calls_of_rank in calls.values() for number in calls_of_rank})
        for number in numbers:
            if (difference := _difference(name, number, calls)) is not None:
                yield difference
                break


def _difference(
    name: str, number: int, calls: Mapping[int | str, Mapping[int, Collective]]
) -> Difference | None:
    by_rank = {
        rank: calls_of_rank[number] for rank, calls_of_rank in calls.items() if number in calls_of_rank
    }
    # The flight recorder is a ring buffer: calls older than a rank's oldest entry are unknown.
    absent = tuple(rank for rank, calls_of_rank in calls.items() if number > max(calls_of_rank, default=0))
    group_calls = [*by_rank.values()]
    pending = [call for call in group_calls if call.is_pending]
    if len({call.op for call in group_calls}) > 1:
        return Difference(name, number, by_rank, absent, "op")
    if pending and group_calls[0].op in SAME_SIZES and len({call.sizes for call in group_calls}) > 1:
        return Difference(name, number, by_rank, absent, "sizes")
    return Difference(name, number, by_rank, absent) if absent and pending else None


def last_calls(rank: Rank, group: str) -> dict[int, Collective]:
    """Map the numbers of a rank's last calls in a group, since it was created, to the calls."""
    calls: dict[int, Collective] = {}
    for call in reversed(rank.collectives):
        if call.group == group and not call.is_p2p:
            if calls and call.number >= min(calls):
                break  # of an older group of that name
            calls[call.number] = call
    return dict(sorted(calls.items()))


def read_groups(report: Mapping[str, Any]) -> dict[str, Group]:
    """Read the process groups that a rank reports."""
    return {
        name: Group(name, group["description"], tuple(group["ranks"]))
        for name, group in report.get("groups", {}).items()
    }


def read_collectives(report: Mapping[str, Any]) -> tuple[Collective, ...]:
    return tuple(
        Collective(
            call["group"],
            call["description"],
            call["number"],
            call["op"],
            tuple(tuple(size) for size in call["sizes"]),
            call["pending"],
            call["p2p"],
            call["time"],
        )
        for call in report.get("calls", ())
    )
