"""15: predict a step's computing and its exchange of gradients.

Six FLOPs of a parameter and token (Kaplan et al., 2020, section 2.1), and a ring all-reduce of fp32 gradients
(Patarasuk and Yuan, 2009).
"""

import random

from trainyard_kit.exercises.checklist import Answer, Exercise, near, parts

STUB = """
def predict(parameters, tokens, tflops, ranks, gbit):
    return 0, 0
"""
EXERCISE = Exercise("predict", seconds=5, stub=STUB)
COMPUTING, EXCHANGE = 0, 1
SIX = "6 FLOPs of a parameter and token, and 10^12 of them a second for each of tflops"
RING = "2 (n - 1) / n times 4 bytes of each parameter, and gbit counts 10^9 bits, eight of which are a byte"


def compare(predict: Answer, part: int, *figures: float, advice: str) -> None:
    """Compare one of the two parts, in seconds."""
    parameters, tokens, tflops, ranks, gbit = figures
    call = f"predict({', '.join(f'{figure:g}' for figure in figures)})"
    result = parts(predict(*figures), ("computing", "exchange"), call)
    computing = 6 * parameters * tokens / (tflops * 1e12)
    exchange = 2 * (ranks - 1) / ranks * 4 * parameters / (gbit * 1e9 / 8)
    near(result[part], (computing, exchange)[part], f"{call}[{part}]", advice)


@EXERCISE.check("computing takes six FLOPs of a parameter and token", essential=True)
def six(predict: Answer) -> None:
    compare(predict, COMPUTING, 1e9, 8192, 100, 1, 100, advice=SIX)


@EXERCISE.check("tokens are those of one rank: more ranks compute as long")
def of_a_rank(predict: Answer) -> None:
    compare(predict, COMPUTING, 1e9, 8192, 100, 8, 100, advice="tokens are one rank's; do not divide them")


@EXERCISE.check("one rank exchanges nothing")
def alone(predict: Answer) -> None:
    compare(predict, EXCHANGE, 1e9, 8192, 100, 1, 100, advice="2 (n - 1) / n is 0 with one rank")


@EXERCISE.check("a ring sends less than twice the gradient, in bytes of eight bits")
def ring(predict: Answer) -> None:
    compare(predict, EXCHANGE, 1e9, 8192, 100, 4, 100, advice=RING)


@EXERCISE.check("so it is for any model, device and network")
def anywhere(predict: Answer) -> None:
    for _ in range(20):
        figures = (random.randint(10**5, 10**10), random.randint(100, 10**5), random.randint(1, 2000))
        more = (random.randint(2, 512), random.randint(1, 3600))
        compare(predict, COMPUTING, *figures, *more, advice=SIX)
        compare(predict, EXCHANGE, *figures, *more, advice=RING)
