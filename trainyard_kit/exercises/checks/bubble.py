"""18: the share of a step in which a pipeline's stage is idle (Huang et al., GPipe, 2019, section 2.2)."""

import random

from trainyard_kit.exercises.checklist import Answer, Exercise, near

STUB = """
def bubble(stages, micro_batches):
    return 0
"""
EXERCISE = Exercise("bubble", seconds=5, stub=STUB)


def compare(bubble: Answer, stages: int, micro_batches: int, advice: str) -> None:
    """Compare with (p - 1) / (m + p - 1)."""
    expected = (stages - 1) / (micro_batches + stages - 1)
    near(bubble(stages, micro_batches), expected, f"bubble({stages}, {micro_batches})", advice)


@EXERCISE.check("two stages with one micro-batch are idle half of the time", essential=True)
def one_micro_batch(bubble: Answer) -> None:
    compare(bubble, 2, 1, "while one computes, the other waits; it is a share, not a percentage")


@EXERCISE.check("a single stage never waits")
def one_stage(bubble: Answer) -> None:
    compare(bubble, 1, 4, "there is no stage before it to wait for")


@EXERCISE.check("micro-batches fill the pipeline")
def filled(bubble: Answer) -> None:
    compare(bubble, 4, 4, "of 4 + 4 - 1 slots a stage computes in 4")


@EXERCISE.check("so it is for any number of both")
def anywhere(bubble: Answer) -> None:
    for _ in range(20):
        compare(bubble, random.randint(2, 64), random.randint(1, 256), "use both arguments")
