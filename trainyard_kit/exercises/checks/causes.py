"""16: find how five runs failed, and on which rank; `trainers/failing.py` draws both from the seed."""

import random
from numbers import Integral

from trainyard_kit.exercises.checklist import UNTOUCHED, Exercise, NotYet, describe

FAILURES = ("deadlock", "loader", "memory", "nan", "straggler")
CASES = "abcde"
EXERCISE = Exercise("answers", "seed", "nodes")
# Why a wrong answer is wrong.
FAILURE_HINTS = {
    "deadlock": "in a deadlock all ranks run, none computes, and one is in another collective than the rest",
    "loader": "if a loader worker dies, a rank ends with an error that names another process id",
    "memory": "a rank over its memory limit is killed by signal 9, and kubectl get pods shows the reason",
    "nan": "the rank that computed a NaN reports it in its error",
    "straggler": "a straggler's stack does not end in a collective: it computes, and all others wait for it",
}
# How to find the rank.
RANK_HINTS = {
    "deadlock": "whose stack ends in a different collective from the others?",
    "loader": "the others lost a connection; look for the only error about a process",
    "memory": "the others lost a connection; whose pod has a status other than Error?",
    "nan": "the others lost a connection; look for the only error about a number",
    "straggler": "the others are in a collective; whose stack ends in the program itself?",
}


def plan(seed: int, ranks: int) -> dict[str, tuple[str, int]]:
    """Draw for each case how it fails, and on which rank, as the program does."""
    chance = random.Random(seed)
    failures = chance.sample(FAILURES, len(FAILURES))
    return {case: (failure, chance.randrange(ranks)) for case, failure in zip(CASES, failures, strict=True)}


def check_answer(case: str, answers: object, seed: int, ranks: int) -> None:
    """Compare an answer with what happened in the program."""
    if not isinstance(answers, dict):
        raise NotYet(f"answers is a {type(answers).__name__}, and should be a dict of the cases")
    if case not in answers:
        names = ", ".join(map(str, answers)) or "nothing"
        raise NotYet(f'no answer yet: set answers["{case}"] = ("memory", 2); answers has {names}')
    answer = answers[case]
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise NotYet(f'it is {describe(answer)}, and should be a failure and a rank: ("memory", 2)')
    if answer[0] == "":
        raise NotYet(f'no answer yet: set answers["{case}"] = ("memory", 2)')
    (written, rank), (expected, culprit) = answer, plan(seed, ranks)[case]
    if (failure := str(written).strip().lower()) not in FAILURES:
        raise NotYet(f"{written!r} is none of {', '.join(FAILURES)}")
    if isinstance(rank, bool) or not isinstance(rank, Integral) or not 0 <= int(rank) < ranks:
        raise NotYet(f"the rank is {describe(rank)}, and should be an integer from 0 to {ranks - 1}")
    if failure != expected:
        raise NotYet(f"not {failure}: {FAILURE_HINTS[failure]}")
    if rank != culprit:
        raise NotYet(f"{failure} is correct, but not on rank {rank!r}: {RANK_HINTS[failure]}")


@EXERCISE.check("at least one answer", essential=True)
def has_an_answer(answers: object, seed: int, nodes: int) -> None:
    del seed, nodes
    if isinstance(answers, dict) and answers == dict.fromkeys(CASES, ("", None)):
        raise NotYet(UNTOUCHED)


for name in CASES:

    @EXERCISE.check(f"case {name}: how it failed, and on which rank")
    def failure_and_rank(answers: object, seed: int, nodes: int, case: str = name) -> None:
        check_answer(case, answers, seed, nodes)
