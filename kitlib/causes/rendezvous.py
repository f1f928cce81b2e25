"""A rendezvous that does not complete: which ranks keep the others in ``init_process_group``. Pure.

Each rank waits there until all have joined. Rank, world size and address are the variables of torch's
own function, as the rank reports them; a rank that has not joined yet does not report.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kitlib.causes.processes import COMPUTES, Joining, RankState

ENVIRONMENT = "init_process_group() without arguments reads what the launcher has set"
SLEEPS = "nanosleep"  # in the kernel, of time.sleep
RUNS = "`run.logs()` shows what it did; as many `nodes=` and `processes_per_node=` as the program waits for"


class Obstacle(NamedTuple):
    """Why ranks do not meet.

    Attributes:
        ranks: The ranks at fault, including ranks that have no process.
        kind: The kind of cause.
        what: A clause about one rank, ``is in …``.
        fix: What to do.
    """

    ranks: list[int | str]
    kind: str
    what: str
    fix: str


def obstacles(states: Sequence[RankState]) -> Iterator[Obstacle]:
    """Find what keeps ranks in ``init_process_group``: the first reason that holds."""
    joining = {state.rank: state.joining for state in states if state.joining}
    if not joining:
        return
    for find in (_sizes, _addresses, _duplicates, _absent):
        if rows := [*find(states, joining)]:
            yield from rows
            return


def _sizes(states: Sequence[RankState], joining: dict[int | str, Joining]) -> Iterator[Obstacle]:
    """Find ranks that wait for a different number of ranks than the run has."""
    started = max((state.world_size for state in states), default=0)
    sizes = {rank: call.world_size for rank, call in joining.items() if started not in (0, call.world_size)}
    for size in sorted(set(sizes.values())):
        ranks = [rank for rank in sizes if sizes[rank] == size]
        what = f"is in init_process_group for a world size of {size}, and the run has {started} ranks"
        yield Obstacle(ranks, "WorldSize", what, f"world_size={started}; {ENVIRONMENT}")


def _addresses(states: Sequence[RankState], joining: dict[int | str, Joining]) -> Iterator[Obstacle]:
    """Find ranks that wait at another address than rank 0: at one where no store is, or at themselves."""
    endpoints = {rank: call.address for rank, call in joining.items() if call.address}
    local = [
        rank for rank, host in endpoints.items() if rank != 0 and host.startswith(("localhost:", "127."))
    ]
    odd = local or [rank for rank in endpoints if rank != 0]
    if not odd:
        return
    endpoint = endpoints[odd[0]]
    ranks = [rank for rank in odd if endpoints[rank] == endpoint]
    what = f"is in init_process_group, and finds no store of rank 0 at {endpoint}"
    if local:
        what += " (of each pod its own)"
    elif 0 in endpoints and endpoints[0] != endpoint:
        what += f": rank 0 waits at {endpoints[0]}"
    elif 0 not in endpoints and any(state.rank == 0 and not state.joining for state in states):
        what += ": rank 0 has not created it yet"
    fix = f"one MASTER_ADDR and MASTER_PORT for all ranks, those of rank 0's pod; {ENVIRONMENT}"
    yield Obstacle(ranks, "MasterAddress", what, fix)


def _duplicates(states: Sequence[RankState], joining: dict[int | str, Joining]) -> Iterator[Obstacle]:
    """Find ranks that join with the number of another rank."""
    for rank, call in joining.items():
        if isinstance(rank, int) and call.rank != rank and any(state.rank == call.rank for state in states):
            what = f"is in init_process_group as rank {call.rank}, which another process has"
            yield Obstacle([rank], "WorldSize", what, f"rank={rank}; {ENVIRONMENT}")


def _absent(states: Sequence[RankState], joining: dict[int | str, Joining]) -> Iterator[Obstacle]:
    """Find the ranks for which the others wait: they have not called the function, or have no process."""
    size = max(call.world_size for call in joining.values())
    waits = f"{len(joining)} of {size} ranks wait for it in init_process_group"
    late = [state for state in states if not state.joining and not state.groups]
    for state in late:
        does = "waits elsewhere"
        if SLEEPS in state.waits:
            does = "sleeps (time.sleep)"
        elif state.cpu >= COMPUTES:
            does = f"still computes ({state.cpu:.0%} of a core)"
        what = f"{does}, and has not joined yet: {waits}"
        yield Obstacle(
            [state.rank], "NotJoined", what, "look at what it does before: imports, data, a download"
        )
    known = {state.rank for state in states} | {call.rank for call in joining.values()}
    missing = [rank for rank in range(size) if rank not in known]
    if missing and not late:
        what = f"has no process: it ended with exit code 0, or never started; {waits}"
        yield Obstacle([*missing], "NotJoined", what, RUNS)
