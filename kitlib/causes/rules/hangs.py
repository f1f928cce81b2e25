"""Hangs: no rank completes a step any more, or one delays the others; found by collectives and processes.

The facts have the states of processes only if they were inspected. What each rank has called (`collectives`)
decides; if ranks do not answer, the states of their processes are compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kitlib.causes.cause import CERTAIN, LIKELY, POSSIBLE, Cause
from kitlib.causes.collectives import Collective, Difference, differences, last_calls
from kitlib.causes.facts import Facts
from kitlib.causes.processes import COMPUTES, RankState
from kitlib.causes.rendezvous import SLEEPS, obstacles
from kitlib.k8s import pods
from kitlib.metrics.events import parse

STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a disk",
    "T": "is stopped",
    "t": "is traced",
    "Z": "has ended",
}
ORDER = "have all ranks call the same collectives in the same order: none in `if rank == 0:`"
PAIR = "pair each send with a recv of that rank, or use isend"
P2P = ("send", "recv")
MAX_LINES = 12
LATE_SHARE, LATE_CALLS = 0.3, 10  # of the time that a rank makes the others wait; in at least so many calls


def hanging_ranks(facts: Facts) -> Iterator[Cause]:
    """Name the rank for which the others wait."""
    ranks = sorted(facts.processes, key=lambda state: (isinstance(state.rank, str), state.rank))
    if facts.phase != "Running" or not ranks:
        return
    causes = [*_stopped(ranks, facts), *_helpers(ranks, facts)]
    if not facts.hang_seconds:
        yield from causes or _late(ranks, facts)
        return
    causes = causes or [*_not_met(ranks, facts)]
    causes = (
        causes
        or [*_different(ranks, facts)]
        or [*_different_stacks(ranks, facts)]
        or [*_computing(ranks, facts)]
    )
    yield from causes or [*_behind(ranks, facts)] or _all_wait(ranks, facts)


RULES = (hanging_ranks,)


def names(ranks: Sequence[int | str]) -> str:
    """Name ranks: ``rank 2``, ``ranks 0, 1, 3``, ``ranks 0 to 6``."""
    if len(ranks) == 1:
        return pods.display_name(ranks[0])
    numbers = [rank for rank in ranks if isinstance(rank, int)]
    if len(numbers) == len(ranks) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _named_with_verb(ranks: Sequence[int | str]) -> str:
    return f"{names(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _cause(
    states: Sequence[RankState],
    facts: Facts,
    kind: str,
    what: str,
    fix: str,
    certainty: int,
    evidence: Sequence[str] = (),
) -> Cause:
    ranks = [state.rank for state in states]
    silent = (f"nothing was written for {facts.hang_seconds:.0f} s",) if facts.hang_seconds else ()
    return Cause(
        kind=kind,
        who=names(ranks),
        what=what,
        fix=fix,
        evidence=(*silent, *evidence, *_state_lines(facts.processes)),
        ruled_out=("a failure: all ranks are alive",),
        certainty=certainty,
        rank=ranks[0] if len(ranks) == 1 else None,
        detail=states[0].trace,
    )


def _state_lines(ranks: Sequence[RankState]) -> list[str]:
    """Describe where the ranks are and what their processes do, equal ones in one line."""
    lines: dict[str, list[int | str]] = {}
    for state in ranks:
        location = f" in {state.location}" if state.location else ""
        waits = f" ({state.waits})" if state.waits not in ("", "0") else ""
        word = STATES.get(state.state, state.state)
        lines.setdefault(f"{word}{location}{waits}, {state.cpu:.0%} of a core", []).append(state.rank)
    texts = [f"{names(members)}: {text}" for text, members in lines.items()]
    return texts[:MAX_LINES] + ([f"and {len(texts) - MAX_LINES} others"] if len(texts) > MAX_LINES else [])


def _stopped(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    for state in ranks:
        if state.state in "Tt":
            fix = f"`run.resume(rank={state.rank!r})`"
            yield _cause(
                [state], facts, "Paused", "is paused (SIGSTOP): the others wait for it", fix, CERTAIN
            )


def _helpers(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Find data loader processes that are stopped or have ended."""
    for state in ranks:
        stopped = [pid for pid, process in state.helpers.items() if process in "TtZ"]
        if stopped:
            word = STATES[state.helpers[stopped[0]]]
            at = f" in {state.line}" if state.line else ""
            what = f"waits for its data loader{at}: process {stopped[0]} {word}"
            fix = "num_workers=0 shows its error; DataLoader(timeout=60) turns the hang into an error"
            yield _cause([state], facts, "DataLoader", what, fix, CERTAIN)
        elif state.state == "D" and facts.hang_seconds:
            what, fix = "waits for a disk or a volume", "kubectl describe pod: does the volume's server run?"
            yield _cause([state], facts, "Disk", what, fix, LIKELY)


def _not_met(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Name the ranks that keep others in ``init_process_group``."""
    for obstacle in obstacles(ranks):
        states = [state for state in ranks if state.rank in obstacle.ranks] or ranks
        what = _plural(obstacle.what, obstacle.ranks)
        cause = _cause(states, facts, obstacle.kind, what, obstacle.fix, CERTAIN)
        number = obstacle.ranks[0] if len(obstacle.ranks) == 1 else None
        yield replace(cause, who=names(obstacle.ranks), rank=number, ruled_out=())


def _different(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Find the first call in which ranks of a group differ, or that some of them have not made."""
    by_rank = {state.rank: state for state in ranks if state.time}
    mismatches = [*differences([*by_rank.values()])]
    for difference in mismatches:
        if difference.kind != "absent":
            (call, odd), *rest = difference.by_call()
            other = "; ".join(
                f"{_named_with_verb(peers)} in {_place(peer_call, by_rank[peers[0]])}"
                for peer_call, peers in rest
            )
            what = f"is in {_place(call, by_rank[odd[0]])}; {other}"
            kind, fix = "CollectiveMismatch", ORDER
            if difference.kind == "sizes":
                shapes = dict.fromkeys(_shape(item.sizes) for item in difference.calls.values())
                what += f": shapes {' and '.join(shapes)} do not match"
                kind, fix = "ShapeMismatch", "pass the same shape on all ranks: drop_last=True, or pad"
            yield _cause([by_rank[rank] for rank in odd], facts, kind, _plural(what, odd), fix, CERTAIN)
            return
    waiting = {rank for rank, state in by_rank.items() if state.pending}
    roots = [item for item in mismatches if not waiting.issuperset(item.absent)] or mismatches
    for difference in sorted(roots, key=lambda item: len(item.absent))[:1]:
        absent = [rank for rank in difference.absent if rank not in waiting] or difference.absent
        yield _absent([by_rank[rank] for rank in absent], difference, facts, by_rank)


def _place(call: Collective, state: RankState) -> str:
    """Name the call that a rank is in, and its line; for a completed call its name alone."""
    return state.location if state.pending == call else call.name


def _absent(
    states: Sequence[RankState], difference: Difference, facts: Facts, by_rank: Mapping[int | str, RankState]
) -> Cause:
    """Describe a rank that has not called the collective in which others wait."""
    waiting = [rank for rank, call in difference.calls.items() if call.is_pending]
    call = difference.calls[waiting[0]]
    others = f"{_named_with_verb(waiting)} in {_place(call, by_rank[waiting[0]])}"
    state = states[0]
    at = f" in {state.line}" if state.line else ""
    if SLEEPS in state.waits:
        kind, what = "Straggler", f"sleeps (time.sleep){at}; {others}, and wait for it"
        fix = "look for what it polls, or waits for"
    elif state.pending is None and state.call.removeprefix("i") in P2P:
        kind, what, fix = "PointToPoint", f"is in {state.location}; {others}", PAIR
    elif state.pending or state.call:
        kind, what, fix = "OtherCollective", f"is in {state.location}; {others}", ORDER
    elif state.cpu >= COMPUTES:
        kind, what = "Straggler", f"still computes ({state.cpu:.0%} of a core){at}; {others}"
        fix = "a loop without end, or more work than the others have: compare what each rank does"
    else:
        kind, what = "MissingCollective", f"waits{at}, and has not called {call.name}; {others}"
        fix = f"{ORDER}, and ignore no exception on one rank"
    same = [item for item in states if item.location == state.location]
    return _cause(same, facts, kind, _plural(what, [item.rank for item in same]), fix, CERTAIN)


def _plural(what: str, ranks: Sequence[object]) -> str:
    if len(ranks) == 1:
        return what
    for one, many in (
        ("is ", "are "),
        ("has ", "have "),
        ("sleeps ", "sleep "),
        ("still computes", "still compute"),
        ("waits ", "wait "),
    ):
        if what.startswith(one):
            return many + what[len(one) :]
    return what


def _shape(sizes: Sequence[Sequence[int]]) -> str:
    return ", ".join("×".join(map(str, size)) or "a number" for size in sizes)


def _different_stacks(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Find ranks whose stacks differ from most ranks' stacks, or a send without a receiver."""
    by_location: dict[str, list[RankState]] = {}
    for state in ranks:
        by_location.setdefault(state.location, []).append(state)
    calls = {state.call.removeprefix("i") for state in ranks}
    if len(calls) == 1 and (op := calls.pop()) in P2P:
        what = f"all are in {' and '.join(by_location)}, and none {'receives' if op == 'send' else 'sends'}"
        cause = _cause(ranks, facts, "PointToPoint", what, PAIR, CERTAIN)
        yield replace(cause, who=f"{len(ranks)} ranks", rank=None)
        return
    if len(by_location) < 2 or "" in by_location or not any(state.call for state in ranks):
        return
    usual = max(by_location, key=lambda location: len(by_location[location]))
    others = _named_with_verb([state.rank for state in by_location[usual]])
    for location, states in by_location.items():
        if location != usual and states[0].call:
            what = f"{'is' if len(states) == 1 else 'are'} in {location}; {others} in {usual}"
            yield _cause(states, facts, "OtherCollective", what, ORDER, CERTAIN)


def _computing(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Find ranks that compute, or call ``time.sleep``, while all others wait."""
    max_cpu = max(state.cpu for state in ranks)
    busy = [state for state in ranks if state.cpu >= max(COMPUTES, max_cpu / 2)]
    asleep = [state for state in ranks if SLEEPS in state.waits]
    if busy and all(state in busy or state.cpu < max_cpu / 4 for state in ranks) and len(busy) < len(ranks):
        for state in busy:
            what = f"still computes ({state.cpu:.0%} of a core) while the others wait for it"
            fix = "a loop without end, or more work than the others have: compare what each rank does"
            yield _cause([state], facts, "Straggler", what, fix, LIKELY)
    elif len(asleep) < len(ranks):
        for state in asleep:
            what, fix = (
                "sleeps (time.sleep) while the others wait for it",
                "look for what it polls, or waits for",
            )
            yield _cause([state], facts, "Straggler", what, fix, LIKELY)


def _behind(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Find ranks that have done fewer steps than the others, by their logs."""
    steps: Counter[int | str] = Counter()
    for lines in facts.logs.values():
        for event in parse(line.text for line in lines):
            step = event.fields.get("step")
            if isinstance(step, int):
                steps[event.rank] = max(steps[event.rank], step)
    last = max(steps.values(), default=0)
    for state in ranks:
        if state.rank in steps and steps[state.rank] < last:
            what = f"waits elsewhere: its last step was {steps[state.rank]}, that of others {last}"
            fix = "it left the loop, or waits in another collective: compare what each rank calls"
            yield _cause([state], facts, "Behind", what, fix, LIKELY)


def _all_wait(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Report that all ranks wait, if none computes; a program that computes may write nothing."""
    if all(state.cpu < COMPUTES / 2 for state in ranks):
        what = "all wait, and none computes: in a collective that not all call, or for data"
        fix = "py-spy in the image shows where each is: your Dockerfile, `kit.build_image(dockerfile=…)`"
        cause = _cause(ranks, facts, "AllWait", what, fix, POSSIBLE)
        yield replace(cause, who=f"{len(ranks)} ranks", rank=None)


def _late(ranks: Sequence[RankState], facts: Facts) -> Iterator[Cause]:
    """Find the rank that calls the collectives last, in a run that completes steps."""
    for group in dict.fromkeys(call.group for state in ranks for call in state.collectives):
        calls = {state.rank: numbered for state in ranks if (numbered := last_calls(state, group))}
        common = sorted(set.intersection(*(set(numbered) for numbered in calls.values())))
        if len(calls) < 2 or len(common) < LATE_CALLS:
            continue
        first = {number: min(numbered[number].time for numbered in calls.values()) for number in common}
        seconds = first[common[-1]] - first[common[0]]
        waits = {
            rank: sum(numbered[number].time - first[number] for number in common)
            for rank, numbered in calls.items()
        }
        (last, most), (_, second) = Counter(waits).most_common(2)
        if seconds > 1 and most >= LATE_SHARE * seconds and most >= 3 * second:
            call, state = calls[last][common[-1]], next(state for state in ranks if state.rank == last)
            share = f"{min(1.0, most / seconds):.0%} of the time"
            what = f"is slow: the others wait for it {share}, in {call.op}"
            fix = f"compare its data, node and other programs with the others': `run.logs(rank={last})`"
            late = f"in the last {len(common)} calls it came {most / len(common):.2f} s later than the first"
            yield _cause([state], facts, "SlowRank", what, fix, LIKELY, (late,))
            return
