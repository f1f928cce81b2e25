"""Agreement to pay, or to lose something: asked at the keyboard, or given beforehand.

A budget is a limit that no answer lifts. What things cost is in `price_table`.
"""

import logging
from collections.abc import Callable, Iterable

from kitlib import config
from kitlib.display import progress
from kitlib.errors import BadInput, NotConfirmed
from trainyard_kit.clouds.price_table import Estimate

log = logging.getLogger("trainyard")


def confirm_cost(
    estimate: Estimate,
    *,
    confirm: bool = False,
    budget: float | None = None,
    already: float = 0.0,
    ask: Callable[[str], str] = input,
) -> None:
    """Show what something costs beside what exists already, check the budget, and ask for agreement."""
    _check_budget(estimate, budget, already)
    if confirm is True:
        _show(estimate)
        return
    if progress.in_notebook():
        _show(estimate)
        question = f"Start {estimate.about} for about {estimate.total:.2f} dollars?"
    else:
        question = f"{estimate}\n\nStart it?"
    confirm_typed("yes", question, about=estimate.about, fix="`confirm=True`", ask=ask)


def committed_cost(standing: Iterable[Estimate]) -> float:
    """Sum up what existing clusters cost until their ends; raise BadInput if a price is not known."""
    total = 0.0
    for resource in standing:
        if resource.unknown:
            message = f"its cost cannot be counted: the price of {', '.join(resource.unknown)} is not known"
            raise BadInput(message, about=resource.about, fix="delete it, or leave the budget out")
        total += resource.total
    return total


def confirm_typed(
    word: str, question: str, *, about: str, fix: str, ask: Callable[[str], str] = input
) -> None:
    """Ask for a word to be typed; anything else is a no, and BadInput without a terminal (papermill)."""
    try:
        answer = ask(f"{question} Type {word} to continue: ")
    except (EOFError, OSError, RuntimeError) as error:  # the last: a kernel that has no keyboard, or no stdin
        raise BadInput(
            "this needs confirmation, and there is no terminal to ask in", about=about, fix=fix
        ) from error
    if answer.strip().lower() != word.lower():
        raise NotConfirmed(
            "you have not agreed to it; nothing was started", about=about, fix=f"type {word}, or {fix}"
        )


def _check_budget(estimate: Estimate, budget: float | None, already: float) -> None:
    limit = config.read().budget if budget is None else config.dollars(budget, "budget")
    if limit is None:
        return
    origin = "TRAINYARD_BUDGET" if budget is None else "budget"
    about = f"{origin}={limit:g}, {estimate.about}"
    if estimate.unknown:
        message = f"the budget cannot be checked: the price of {', '.join(estimate.unknown)} is not known"
        raise BadInput(message, about=about, fix="choose a type with a known price, or leave the budget out")
    if already + estimate.total > limit:
        before = f" beside {already:.2f} for what is there already" if already else ""
        hours = int((limit - already - estimate.once) / estimate.an_hour * 10) / 10
        shorter = f"`hours={hours:g}`, " if hours >= 0.5 else ""
        raise BadInput(
            f"it would cost {estimate.total:.2f} dollars in {estimate.hours:g} hours{before}, "
            "which is above the budget; nothing was started",
            about=about,
            fix=f"{shorter}fewer or smaller nodes, `spot=True`, or a larger budget",
            detail=repr(estimate.table()),
        )


def _show(estimate: Estimate) -> None:
    if progress.in_notebook():
        from IPython.display import display

        display(estimate)
        return
    for line in repr(estimate).splitlines():
        log.info("%s", line)
