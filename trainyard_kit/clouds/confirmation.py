"""Confirmation of costs and of deletions, interactive or by ``confirm=True``.

A budget is a hard limit that confirmation does not lift. Prices are in `price_table`.
"""

import logging
from collections.abc import Iterable

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
    committed: float = 0.0,
) -> None:
    """Show an estimate, check it against the budget, of which ``committed`` dollars are used, and confirm."""
    _check_budget(estimate, budget, committed)
    if confirm is True:
        _show(estimate)
        return
    if progress.in_notebook():
        _show(estimate)
        question = f"Start {estimate.about} for about {estimate.total:.2f} dollars?"
    else:
        question = f"{estimate}\n\nStart it?"
    confirm_typed("yes", question, about=estimate.about)


def committed_cost(estimates: Iterable[Estimate]) -> float:
    """Sum what existing clusters cost until they expire; raise BadInput if a price is unknown."""
    total = 0.0
    for estimate in estimates:
        if estimate.unknown:
            message = f"its cost cannot be estimated: the price of {', '.join(estimate.unknown)} is not known"
            raise BadInput(message, about=estimate.about, fix="delete it, or leave the budget out")
        total += estimate.total
    return total


def confirm_typed(word: str, question: str, *, about: str) -> None:
    """Ask the user to type ``word``.

    Raises:
        NotConfirmed: They typed something else.
        BadInput: There is no terminal, as under papermill.
    """
    try:
        answer = input(f"{question} Type {word} to continue: ")
    except (EOFError, OSError, RuntimeError) as error:  # RuntimeError: a kernel without stdin
        what = "this needs confirmation, and there is no terminal to prompt in"
        raise BadInput(what, about=about, fix="`confirm=True`") from error
    if answer.strip().lower() != word.lower():
        raise NotConfirmed(
            "not confirmed; nothing was started", about=about, fix=f"type {word}, or `confirm=True`"
        )


def _check_budget(estimate: Estimate, budget: float | None, committed: float) -> None:
    limit = config.read().budget if budget is None else config.dollars(budget, "budget")
    if limit is None:
        return
    about = f"{'TRAINYARD_BUDGET' if budget is None else 'budget'}={limit:g}, {estimate.about}"
    if estimate.unknown:
        message = f"the budget cannot be checked: the price of {', '.join(estimate.unknown)} is not known"
        raise BadInput(message, about=about, fix="choose a type with a known price, or leave the budget out")
    if committed + estimate.total > limit:
        existing = f" on top of {committed:.2f} for existing clusters" if committed else ""
        hours = int((limit - committed - estimate.once) / estimate.hourly * 10) / 10
        fewer_hours = f"`hours={hours:g}`, " if hours >= 0.5 else ""
        raise BadInput(
            f"it would cost {estimate.total:.2f} dollars in {estimate.hours:g} hours{existing}, "
            "which is above the budget; nothing was started",
            about=about,
            fix=f"{fewer_hours}fewer or smaller nodes, `spot=True`, or a larger budget",
            detail=repr(estimate.table()),
        )


def _show(estimate: Estimate) -> None:
    if progress.in_notebook():
        from IPython.display import display

        display(estimate)
        return
    for line in repr(estimate).splitlines():
        log.info("%s", line)
