"""14: predict a rank's memory from the number of parameters, before it is measured.

16 bytes of a parameter in fp32 with Adam, divided as ZeRO's stages say: Rajbhandari et al., 2020, section 3.
"""

import random

from trainyard_kit.exercises.checklist import Answer, Exercise, near, parts

STUB = """
def predict(parameters, ranks, split):
    return 0, 0, 0
"""
PARTS = ("parameters", "gradients", "optimizer")
EXERCISE = Exercise("predict", seconds=5, stub=STUB)


def compare(predict: Answer, parameters: int, ranks: int, split: bool, advice: str) -> None:
    """Compare the three parts with 4, 4 and 8 bytes of a parameter, divided by the ranks if it is split."""
    call = f"predict({parameters}, {ranks}, {split})"
    result = parts(predict(parameters, ranks, split), PARTS, call)
    for name, size, number in zip(PARTS, (4, 4, 8), result, strict=True):
        near(number, parameters * size / (ranks if split else 1), f"{name} of {call}", advice)


@EXERCISE.check("one rank holds 16 bytes of a parameter", essential=True)
def one_rank(predict: Answer) -> None:
    compare(predict, 1000, 1, False, "4 bytes each of weight and gradient, and two moments of 4")


@EXERCISE.check("with DDP each rank has a copy of all")
def copies(predict: Answer) -> None:
    compare(predict, 1000, 4, False, "DDP divides the batch, and nothing of the state")


@EXERCISE.check("with FSDP the ranks divide all three")
def divided(predict: Answer) -> None:
    compare(predict, 1000, 4, True, "a rank holds its part alone: divide by the ranks")


@EXERCISE.check("so it is for any model and any number of ranks")
def anywhere(predict: Answer) -> None:
    for _ in range(20):
        parameters, ranks = random.randint(10**3, 10**9), random.randint(2, 512)
        compare(predict, parameters, ranks, random.random() < 0.5, "use all three arguments")
