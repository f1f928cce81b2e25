"""Check the answers to the notebooks' exercises with ``kit.check``.

    kit.check("04", dataset=Doodles)

Each exercise is a module of `checks`: the names of its answers, and an ordered list of small named checks. A
learner's code runs in a separate process with a time limit (`sandbox`); manifests are sent to the API server
as a dry run. Answers are never compared with the text of a solution. The task, hints and solution are in the
notebook.
"""

import functools
import importlib

from kitlib.errors import BadInput, Interrupted
from trainyard_kit.exercises import sandbox
from trainyard_kit.exercises.checklist import UNTOUCHED, Checklist, Exercise

EXERCISES = {
    "00": "formulas.amdahl",
    "01": "job",
    "02": "atomic_save",
    "03": "dockerfile",
    "04": "dataset",
    "05": "ddp",
    "05-step": "formulas.strong_scaling",
    "06": "finish",
    "06-epoch": "formulas.epoch",
    "07": "pattern",
    "08": "elastic_loop",
    "09": "pytorch_job",
    "10": "optimizer",
    "11": "priority_class",
    "11-workers": "formulas.workers_left",
    "12": "accuracies",
    "13": "adoption",
    "14": "formulas.rank_memory",
    "15": "exposed",
    "15-step": "formulas.step_formula",
    "16": "causes",
    "17": "device_claim",
    "17-fits": "formulas.partitions",
    "18": "formulas.bubble",
    "19": "autoscaler",
    "19-lora": "formulas.lora",
    "20": "formulas.cost",
    "21": "formulas.repeated",
    "22": "gpu_job",
    "23": "resume",
    "23-interval": "formulas.interval",
    "24": "formulas.scaling",
    "25": "formulas.crossings",
}
__all__ = ["check"]


def check(notebook: str, **answers: object) -> Checklist:
    """Check your answer to a notebook's exercise: one row per check, with advice where it fails.

    Args:
        notebook: The notebook's number: ``"04"``.
        answers: Your answers, by the names used in the exercise's cell.

    Returns:
        The rows; true if all checks pass.

    Raises:
        BadInput: The notebook has no such exercise, or the exercise takes other answers.
        Interrupted: The check was interrupted; the processes that it started have ended.

    Example:
        >>> check("12", accuracies=accuracies)
    """
    if notebook not in EXERCISES:
        fix = f"one of {', '.join(EXERCISES)}"
        raise BadInput("no exercise has this number", about=f"kit.check({notebook!r})", fix=fix)
    exercise = load(notebook)
    if set(answers) != set(exercise.answers):
        call = ", ".join(f"{name}={name}" for name in exercise.answers)
        names = ", ".join(answers) or "nothing"
        raise BadInput(
            f"the exercise takes {', '.join(exercise.answers)}",
            about=f'kit.check("{notebook}") was given {names}',
            fix=f'`kit.check("{notebook}", {call})`',
        )
    if exercise.stub is not None and any(
        type(answer) is type(exercise.stub) and answer == exercise.stub for answer in answers.values()
    ):
        return exercise.fail_first(UNTOUCHED)
    try:
        if exercise.seconds:
            return sandbox.check_answer(exercise, answers)
        return Checklist(tuple(exercise.rows(answers)))
    except KeyboardInterrupt as error:
        raise Interrupted(
            "the check was interrupted",
            about=f'kit.check("{notebook}")',
            fix="run the cell again",
        ) from error


@functools.cache
def load(notebook: str) -> Exercise:
    """Import the exercise of a notebook, by the notebook's number."""
    module, _, formula = EXERCISES[notebook].partition(".")
    checks = importlib.import_module(f"trainyard_kit.exercises.checks.{module}")
    return getattr(checks, f"{formula}_exercise" if formula else "EXERCISE")
