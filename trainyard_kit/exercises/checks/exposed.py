"""15: the communication time that no computation hides; checked with given and random spans."""

import random
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

STUB = '''
def exposed(communication, computing):
    """Add up the milliseconds of communication in which nothing is computed; spans are (begin, end)."""
    return 0
'''
EXERCISE = Exercise("exposed", seconds=5, stub=STUB)


def compare(exposed: Answer, communication: list[Any], computing: list[Any], advice: str) -> None:
    """Compare with a count of half milliseconds; like those of a trace, the spans have fractions."""
    covered = {ms for begin, end in computing for ms in range(begin, end)}
    expected = len({ms for begin, end in communication for ms in range(begin, end)} - covered) / 2
    communication, computing = ([(a / 2, b / 2) for a, b in spans] for spans in (communication, computing))
    result = exposed(list(communication), list(computing))
    try:
        right = not isinstance(result, bool | str) and abs(float(result) - expected) < 1e-6
    except (TypeError, ValueError):
        raise NotYet(f"it returns {describe(result)}, and should return milliseconds") from None
    if not right:
        call = f"exposed({communication}, {computing})"
        raise NotYet(f"{call} is {describe(result)}, and should be {expected}: {advice}")


@EXERCISE.check("without computation, all communication is exposed", essential=True)
def no_computation(exposed: Answer) -> None:
    compare(exposed, [(10, 30), (40, 45)], [], "add up all spans, including fractions of milliseconds")


@EXERCISE.check("computation hides the communication that it overlaps")
def hidden_communication(exposed: Answer) -> None:
    compare(exposed, [(10, 30)], [(0, 50)], "nothing remains")
    compare(exposed, [(10, 30)], [(20, 50)], "subtract the overlap, and no more")
    compare(exposed, [(10, 30)], [(30, 50)], "spans that only touch do not overlap")


@EXERCISE.check("several computations may hide parts of one operation")
def several_computations(exposed: Answer) -> None:
    compare(exposed, [(0, 40)], [(5, 10), (20, 25)], "compare with each span of computation")


@EXERCISE.check("a millisecond covered by two spans counts once")
def merged_spans(exposed: Answer) -> None:
    compare(exposed, [(0, 40)], [(5, 15), (10, 20)], "merge overlapping spans of computation first")
    compare(exposed, [(0, 20), (10, 30)], [(25, 40)], "two simultaneous operations count once")
    nested = "a span may lie within another: a merged span ends at the later end of both"
    compare(exposed, [(0, 40)], [(5, 30), (10, 15)], nested)
    compare(exposed, [(0, 40), (5, 10)], [], nested)


@EXERCISE.check("it is right for fifty random timelines, in any order", last=True)
def random_spans(exposed: Answer) -> None:
    generator = random.Random(15)
    for _ in range(50):
        communication, computing = (
            [
                (begin, begin + generator.randrange(1, 20))
                for begin in (generator.randrange(60) for _ in range(count))
            ]
            for count in (generator.randrange(4), generator.randrange(6))
        )
        compare(exposed, communication, computing, "spans are in no particular order")
