"""00, 05, 06, 11, 14, 15, 17 to 21, 23 to 25: predict with a formula; the cases are in `formulas.toml`.

Sources: strong scaling: Gene Amdahl, "Validity of the single processor approach to achieving large scale
computing capabilities", 1967. Ring all-reduce: Patarasuk and Yuan, 2009. Bytes per parameter:
Rajbhandari et al., ZeRO, 2020, section 3. Six FLOPs per parameter and token: Kaplan et al., 2020, section
2.1. Pipeline bubble: Huang et al., GPipe, 2019, section 2.2. GPU slices: NVIDIA's MIG user guide. Low-rank
matrices: Hu et al., LoRA, 2021, section 4.1.
"""

import copy
import math
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard_kit.exercises.checklist import Answer, Exercise, ExerciseCheck, NotYet, check_number, parts

CALLS = 20


def amdahl(share: float, workers: int) -> float:
    """Compute the speed-up of workers that divide a share of the work."""
    return 1 / (1 - share + share / workers)


def bubble(stages: int, micro_batches: int) -> float:
    """Compute the fraction of a step for which a pipeline stage is idle."""
    return (stages - 1) / (micro_batches + stages - 1)


def cost(hours: float, nodes: int, price: float, control_plane: float, starting: float) -> list[float]:
    """Compute the hours for which a cluster exists, and what they cost."""
    total = hours / nodes + starting
    return [total, total * (nodes * price + control_plane)]


def crossings(racks: list[str], megabytes: float, mbit: float, ms: float) -> list[float]:
    """Count the ring's edges between two racks, and compute a step's ms: each direction has half of them."""
    ranks = len(racks)
    edges = sum(racks[rank - 1] != racks[rank] for rank in range(ranks))
    return [edges, ms + edges / 2 * 1000 * 2 * (ranks - 1) / ranks * 8 * megabytes / mbit]


def epoch(images: int, batch_size: int, workers: int, ms_per_image: float) -> list[float]:
    """Compute an epoch's number of steps, with a full batch for each worker, and its seconds."""
    return [math.ceil(images / (batch_size * workers)), images / workers * ms_per_image / 1000]


def lora(matrices: list[list[int]], rank: int, ranks: int) -> list[float]:
    """Count LoRA's weights, and the bytes of fp32 gradients that a rank sends in a ring all-reduce."""
    weights = sum(rank * sum(sides) for sides in matrices)
    return [weights, 2 * (ranks - 1) / ranks * 4 * weights]


def partitions(taken: list[list[int]], wanted: list[int]) -> float:
    """Count the MIG partitions that still fit into seven compute and eight memory slices."""
    compute, memory = 7 - sum(part[0] for part in taken), 8 - sum(part[1] for part in taken)
    return min(compute // wanted[0], memory // wanted[1])


def repeated(
    survivors: int, ended: int, every: int, step_seconds: float, megabytes: float, mb_per_s: float
) -> list[float]:
    """Count the steps that a run repeats after a loss, and compute the seconds until it is where it was."""
    steps = 0 if survivors else ended % every
    return [steps, 0 if survivors else megabytes / mb_per_s + steps * step_seconds]


def rank_memory(parameters: int, ranks: int, split: bool) -> list[float]:
    """Compute a rank's bytes of weights, gradients and Adam's moments in fp32."""
    share = parameters / (ranks if split else 1)
    return [4 * share, 4 * share, 8 * share]


def interval(saving: float, failing: float) -> list[float]:
    """Compute the best seconds between two saves and the fraction of time lost, by Young's formula."""
    return [math.sqrt(2 * saving * failing), math.sqrt(2 * saving / failing)]


def scaling(
    ranks: int, megabytes: float, mbit: float, ms: float, batches: int = 1, ratio: float = 1
) -> float:
    """Compute the speed-up with an all-reduce every few batches of gradients compressed by ``ratio``."""
    exchange = 1000 * 2 * (ranks - 1) / ranks * 8 * megabytes / ratio / mbit
    return ranks * batches * ms / (batches * ms + exchange)


def step_formula(parameters: float, tokens: int, tflops: float, ranks: int, gbit: float) -> list[float]:
    """Compute the seconds of computation, and of a ring all-reduce of fp32 gradients."""
    exchange = 2 * (ranks - 1) / ranks * 4 * parameters / (gbit * 1e9 / 8)
    return [6 * parameters * tokens / (tflops * 1e12), exchange]


def strong_scaling(workers: int, computing: float, undivided: float, megabytes: float, rate: float) -> float:
    """Compute the milliseconds of a step whose batch is divided among workers."""
    return computing / workers + undivided + 1000 * 2 * (workers - 1) / workers * megabytes / rate


def workers_left(cpus: list[float], request: float, service: int, workers: int) -> float:
    """Count the workers that run beside a service whose pods are scheduled first."""
    return min(workers, max(0, sum(int(cpu // request) for cpu in cpus) - service))


def __getattr__(attribute: str) -> Exercise:
    """Build the exercise of a formula from its cases: ``amdahl_exercise`` is that of `amdahl`."""
    name, _, last = attribute.rpartition("_")
    if last != "exercise" or name not in globals():
        raise AttributeError(attribute)
    formula = globals()[name]
    table = tomllib.loads(Path(__file__).with_name("formulas.toml").read_text("utf-8"))[name]
    exercise = Exercise(table["answer"], seconds=5, stub=table["stub"], name=attribute)
    labels = table.get("parts", [])
    previous: dict[str, str] = {}  # what follows from a mistake is not called one of its own
    for case in table["checks"]:
        same = f"{case.get('only')}"
        exercise.checks.append(_check(exercise, formula, labels, case, after=previous.get(same, "")))
        previous[same] = case["name"]
    return exercise


def _check(
    exercise: Exercise, formula: Callable[..., Any], labels: list[str], case: Any, *, after: str
) -> ExerciseCheck:
    (name,) = exercise.answers

    def check(**answers: Answer) -> None:
        drawn = [list(map(_draw, case["draw"])) for _ in range(CALLS)] if "draw" in case else []
        for arguments in [*case.get("calls", []), *drawn]:
            shown = (f"{value:g}" if type(value) is float else f"{value}" for value in arguments)
            call = f"{name}({', '.join(shown)})"
            result, expected = answers[name](*copy.deepcopy(arguments)), formula(*arguments)
            if not labels:
                check_number(result, expected, call, case["advice"])
                continue
            numbers = parts(result, labels, call)
            if _permuted(numbers, expected):
                raise NotYet(
                    f"{call} returns its numbers in the wrong order; it should be {', '.join(labels)}"
                )
            for label, number, value in zip(labels, numbers, expected, strict=True):
                if label in case.get("only", labels):
                    check_number(number, value, f"{label} of {call}", case["advice"])

    essential, last = case.get("essential", False), "draw" in case
    return ExerciseCheck(case["name"], check, essential, last, after)


def _permuted(numbers: list[Any], expected: list[float]) -> bool:
    """Check whether numbers are the expected ones in another order."""
    if not all(isinstance(number, int | float) for number in numbers):
        return False
    pairs = zip(sorted(numbers), sorted(expected), strict=True)
    same = all(math.isclose(number, value, rel_tol=1e-3) for number, value in pairs)
    return same and not all(
        math.isclose(number, value, rel_tol=1e-3) for number, value in zip(numbers, expected, strict=True)
    )


def _draw(values: list[Any]) -> Any:
    """Draw an integer between two, or one of several values."""
    between = len(values) == 2 and type(values[0]) is int
    return random.randint(*values) if between else random.choice(values)
