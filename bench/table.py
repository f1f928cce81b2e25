"""Print results as a table, with notes for their interpretation."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from bench.machine import BUSY, State
from bench.results import MET, MISSED, Result, number

STYLES = {MET: "green", MISSED: "red"}


def draw(
    results: Iterable[Result], *, states: dict[str, State], failures: dict[str, str], console: Console
) -> None:
    """Print results, reasons for doubt, and what could not be measured.

    Args:
        results: In the order of rows.
        states: The machine's state before each measure, by name.
        failures: The reason why a measure failed, by name.
        console: The output.
    """
    table = Table(title="Trainyard beside its peers (medians)", title_justify="left")
    for heading in ("what", "ours", "peer's", "ratio", "limit", "", "peer"):
        right = heading in ("ours", "peer's", "ratio")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    for result in results:
        table.add_row(*_row(result))
    console.print(table)
    for result in results:
        if result.notes:
            console.print(f"{result.what}: {result.notes}", markup=False)
    for name, reason in failures.items():
        console.print(f"{name}: not measured: {reason}", style="red", markup=False)
    busy = {name: state for name, state in states.items() if state.load > BUSY}
    if busy:
        text = ", ".join(f"{s.load:g} before {name} ({s.busy_percent:g}% busy)" for name, s in busy.items())
        console.print(f"The machine had other work: load average {text}.", style="yellow")


def _row(result: Result) -> list[str]:
    style = STYLES.get(result.verdict)
    verdict = f"[{style}]{result.verdict}[/]" if style else result.verdict
    return [
        result.what,
        number(result.value, result.unit),
        "absent" if result.absent else result.peer_text,
        result.ratio_text,
        str(result.limit or ""),
        verdict,
        f"{result.peer} (absent: {result.absent})" if result.absent else result.peer,
    ]
