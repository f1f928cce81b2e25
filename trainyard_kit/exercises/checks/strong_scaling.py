"""05: predict a step of workers that divide a batch: Amdahl (1967), and a ring (Patarasuk and Yuan, 2009)."""

import random

from trainyard_kit.exercises.checklist import Answer, Exercise, near

STUB = """
def predict(workers, computing, undivided, megabytes, mb_per_s):
    return 0
"""
EXERCISE = Exercise("predict", seconds=5, stub=STUB)
RING = "a ring sends 2 (n - 1) / n times the gradient, and a second has 1000 milliseconds"


def compare(predict: Answer, *figures: float, advice: str) -> None:
    """Compare a step in milliseconds: computing / n + undivided + 2 (n - 1) / n of the gradient / rate."""
    workers, computing, undivided, megabytes, rate = figures
    exchange = 1000 * 2 * (workers - 1) / workers * megabytes / rate
    call = f"predict{figures}"
    near(predict(*figures), computing / workers + undivided + exchange, call, advice)


@EXERCISE.check("one worker computes, and exchanges nothing", essential=True)
def one_worker(predict: Answer) -> None:
    compare(predict, 1, 100, 5, 8, 100, advice="the sum of computing and undivided")


@EXERCISE.check("four workers divide the computing, and nothing else")
def only_computing(predict: Answer) -> None:
    compare(predict, 4, 100, 5, 0, 100, advice="computing / workers, and all of undivided")


@EXERCISE.check("a ring sends less than twice the gradient")
def ring(predict: Answer) -> None:
    compare(predict, 4, 0, 0, 100, 1000, advice=RING)


@EXERCISE.check("so it is for any workers and any network", after="a ring sends less than twice the gradient")
def anywhere(predict: Answer) -> None:
    for _ in range(20):
        workers, computing, undivided = random.randint(2, 99), random.randint(1, 999), random.randint(1, 99)
        compare(
            predict,
            workers,
            computing,
            undivided,
            random.randint(1, 999),
            random.randint(10, 9999),
            advice="use all five",
        )
