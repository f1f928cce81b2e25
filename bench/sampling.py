"""Order rounds, and compute percentiles of samples. Pure.

Rounds alternate the order of sides, so that slow changes (heat, caches, other users of the
machine) affect all sides equally.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def alternating(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the names in the order of each round.

    Example:
        >>> alternating(["ours", "theirs"], 3)
        [['ours', 'theirs'], ['theirs', 'ours'], ['ours', 'theirs']]
    """
    return [list(names) if number % 2 == 0 else list(reversed(names)) for number in range(rounds)]


def alternate(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call each side once per round and return the results.

    Args:
        sides: By name; every call is one sample.
        rounds: The number of rounds.
    """
    answers: dict[str, list[T]] = {name: [] for name in sides}
    for names in alternating(list(sides), rounds):
        for name in names:
            answers[name].append(sides[name]())
    return answers


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that is not exceeded by ``share`` percent of all (nearest rank).

    Example:
        >>> percentile([5, 1, 4, 2, 3], 50)
        3

    Raises:
        ValueError: There are no samples.
    """
    if not samples:
        raise ValueError("no samples")
    rank = max(1, math.ceil(len(samples) * share / 100))
    return sorted(samples)[rank - 1]
