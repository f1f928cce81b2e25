"""00: Amdahl's law as a function of the parallel share and the number of workers.

Gene Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities", 1967.
"""

import random
from typing import SupportsFloat

from trainyard_kit.exercises.checklist import Answer, Exercise, NotYet, describe

STUB = """
def amdahl(share, workers):
    return workers
"""
EXERCISE = Exercise("amdahl", seconds=5, stub=STUB)
CALLS = 20


def close(result: object, expected: float, call: str) -> None:
    """Compare a number that a call returned."""
    try:
        if isinstance(result, bool | str | bytes) or not isinstance(result, SupportsFloat):
            raise TypeError
        number = float(result)  # of NumPy, of a tensor, a fraction
    except (TypeError, ValueError):
        raise NotYet(f"{call} returns {describe(result)}, and should return a number") from None
    if not abs(number - expected) <= 0.01:  # nor is it nan
        raise NotYet(f"{call} is {number:.4g}, and should be {expected:.4g}")


@EXERCISE.check("one worker gives no speed-up", essential=True)
def one_worker(amdahl: Answer) -> None:
    close(amdahl(0.5, 1), 1, "amdahl(0.5, 1)")


@EXERCISE.check("fully parallel work is n times as fast with n workers")
def all_parallel(amdahl: Answer) -> None:
    close(amdahl(1.0, 4), 4, "amdahl(1.0, 4)")


@EXERCISE.check("serial work gets no faster")
def none_parallel(amdahl: Answer) -> None:
    close(amdahl(0.0, 8), 1, "amdahl(0.0, 8)")


@EXERCISE.check("only the parallel share is divided by the workers")
def some_parallel(amdahl: Answer) -> None:
    close(amdahl(0.9, 10), 1 / 0.19, "amdahl(0.9, 10)")


@EXERCISE.check("it holds for any share and any number of workers")
def anywhere(amdahl: Answer) -> None:
    for _ in range(CALLS):
        share, workers = round(random.uniform(0.05, 0.95), 3), random.randint(2, 99)
        close(amdahl(share, workers), 1 / (1 - share + share / workers), f"amdahl({share}, {workers})")


@EXERCISE.check("a million workers do not exceed the limit")
def many_workers(amdahl: Answer) -> None:
    close(amdahl(0.9, 1_000_000), 10, "amdahl(0.9, 1_000_000)")
