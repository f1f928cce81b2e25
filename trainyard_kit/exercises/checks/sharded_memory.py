"""06: predict a worker's bytes with DDP and with FSDP (Rajbhandari et al., ZeRO, 2020, section 3).

SGD with momentum in fp32 keeps three numbers of a parameter: weight, gradient and momentum.
"""

import random

from trainyard_kit.exercises.checklist import Answer, Exercise, near

STUB = """
def predict(parameters, workers, split):
    return 0
"""
EXERCISE = Exercise("predict", seconds=5, stub=STUB)


def compare(predict: Answer, parameters: int, workers: int, split: bool, advice: str) -> None:
    """Compare with 12 bytes of a parameter, divided by the workers if it is split."""
    expected = 12 * parameters / (workers if split else 1)
    near(predict(parameters, workers, split), expected, f"predict({parameters}, {workers}, {split})", advice)


@EXERCISE.check("one worker keeps three numbers of four bytes for each parameter", essential=True)
def one_worker(predict: Answer) -> None:
    compare(predict, 1000, 1, False, "weight, gradient and momentum, of 4 bytes each")


@EXERCISE.check("with DDP each worker has all of them")
def copies(predict: Answer) -> None:
    compare(predict, 1000, 4, False, "DDP divides the images, and nothing of the state")


@EXERCISE.check("with FSDP the workers divide them")
def divided(predict: Answer) -> None:
    compare(predict, 1000, 4, True, "a worker holds its part alone: divide by the workers")


@EXERCISE.check("so it is for any model and any number of workers")
def anywhere(predict: Answer) -> None:
    for _ in range(20):
        parameters, workers = random.randint(10**3, 10**9), random.randint(2, 512)
        compare(predict, parameters, workers, random.random() < 0.5, "use all three arguments")
