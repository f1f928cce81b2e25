"""00: Amdahl's law as a function of the parallel share and the number of workers.

Gene Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities", 1967.
"""

from trainyard_kit.exercises.checklist import Exercise, NotYet, describe

EXERCISE = Exercise("amdahl", seconds=5)


def close(found: object, wanted: float, call: str) -> None:
    """Compare a number that a call returned.

    Raises:
        NotYet: It is no number, or another.
    """
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise NotYet(f"{call} returns {describe(found)}, and should return a number")
    if abs(found - wanted) > 0.01:
        raise NotYet(f"{call} is {found:.4g}, and should be {wanted:.4g}")


@EXERCISE.check("one worker is as fast as one", essential=True)
def one_worker(amdahl):
    close(amdahl(0.5, 1), 1, "amdahl(0.5, 1)")


@EXERCISE.check("what is fully parallel is n times as fast with n workers")
def all_parallel(amdahl):
    close(amdahl(1.0, 4), 4, "amdahl(1.0, 4)")


@EXERCISE.check("what is not parallel at all stays as it is")
def none_parallel(amdahl):
    close(amdahl(0.0, 8), 1, "amdahl(0.0, 8)")


@EXERCISE.check("only the parallel share is divided by the workers")
def some_parallel(amdahl):
    close(amdahl(0.9, 10), 1 / 0.19, "amdahl(0.9, 10)")


@EXERCISE.check("a million workers do not pass the limit")
def many_workers(amdahl):
    close(amdahl(0.9, 1_000_000), 10, "amdahl(0.9, 1_000_000)")
