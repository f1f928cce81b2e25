"""Write docs/day.html, the half-day and full-day agendas on a page, and the minutes in the guide.

    .venv/bin/python tools/day_sheet.py

Minutes are estimated from words, lines, cells and exercises; machine seconds are in each notebook's metadata;
a tenth is added for questions. Print the page from a browser.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from solutions import unfold

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "day.html"
GUIDE = ROOT / "docs" / "instructors-guide.md"
WORDS, LINES, CELL, EXERCISE = 150, 20, 0.25, 4  # words and lines per minute; minutes per cell and exercise
BEFORE, AFTER = (
    ("The question",),
    ("On a cloud", "Clean up"),
)  # sections that count as the goal, and as the rest
BREAK, LUNCH = 15, 60
HALF = ("welcome", "01", "05", "break", "06", "12", "13")
FULL = (
    "welcome",
    "00",
    "01",
    "02",
    "03",
    "break",
    "04",
    "05",
    "lunch",
    "06",
    "07",
    "08",
    "break",
    "09",
    "12",
    "13",
)
BESIDE = {"welcome": 15, "break": BREAK, "lunch": LUNCH}
# What all should see before the next notebook; what can be skipped.
CHECKPOINTS = {
    "welcome": ("<code>trainyard doctor</code> without a line that is missing", ""),
    "00": ("a speed-up by Amdahl's law", "from <em>Memory</em> on"),
    "01": ("four nodes Ready, a Job of three pods", "<em>The nodes</em>"),
    "02": ("a claim is Bound, read by pods of two nodes", "<em>When it goes wrong</em>"),
    "03": ("a line of the Dockerfile that checks", "all but the exercise"),
    "04": ("a dataset on the volume", "<em>Sequential, then concurrent</em>"),
    "05": ("losses of four ranks, accuracy above 0.9", "without simulation"),
    "06": ("half the steps each; the model on the volume", "<em>When it goes wrong</em>"),
    "07": ("the losses of a script that knows no cluster", "TensorBoard"),
    "08": ("a killed worker, and the same loss", "<em>Stop a node</em>"),
    "09": ("a PyTorchJob has Succeeded", "<em>The next generation</em>"),
    "12": ("a confusion matrix, and its largest pair", "<em>The worst mistakes</em>"),
    "13": ("nothing is left, and who knows what it cost", "never left out"),
}
STYLE = """@page { size: A4; margin: 10mm }
body { font: 8.5pt/1.25 sans-serif; max-width: 190mm; margin: auto; color: #111; background: #fff }
h1 { font-size: 14pt; margin: 0 0 1mm } h2 { font-size: 10pt; margin: 2.5mm 0 1mm } p { margin: 1mm 0 }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 0.3pt solid #999; padding: 0.4mm 1.2mm; text-align: left }
td:nth-child(1), td:nth-child(3), td:nth-child(4) { text-align: right; white-space: nowrap }
.pause { background: #eee }"""
BELOW = """<h2>If time runs short</h2>
<p>Ten minutes late: what <em>skip first</em> names. Twenty: leave out 03 and the second half of 09.
Whoever is behind goes on with the next notebook, which creates what it needs. Never leave out 13.</p>
<h2>If something is wrong</h2>
<p>A pod is Pending: <code>run.why()</code>, or <code>trainyard kubectl describe pod NAME</code>.
A notebook is confused: <code>trainyard reset NN</code>, restart the kernel, run it again.
The cluster is: <code>trainyard cluster delete</code>; the first cells create it anew in seconds.
Everything is slow: other clusters on the machine, <code>trainyard cluster list</code>.
Who is where: <code>trainyard workshop status</code>.</p>
<h2>Say it three times</h2>
<p>Four pods on two cores are not faster; the simulated accelerator shows what more machines would do.
Predict, then run. On a cloud: who deletes the cluster, at what time? ________</p>"""


def read(number: str) -> NotebookNode:
    """Read a notebook, with its solutions as code."""
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return unfold(nbformat.read(path, as_version=4))


def minutes(cells: Sequence[NotebookNode]) -> float:
    """Estimate a learner's minutes for cells: reading, running and exercises, without machine time."""
    markdown = [cell for cell in cells if cell.cell_type == "markdown"]
    code = [
        cell for cell in cells if cell.cell_type == "code" and "hosted" not in cell.metadata.get("tags", ())
    ]
    word_count = sum(len(cell.source.split()) for cell in markdown)
    lines = sum(len(cell.source.splitlines()) for cell in code)
    exercises = sum("exercise" in cell.metadata.get("tags", ()) for cell in code)
    return word_count / WORDS + lines / LINES + CELL * len(code) + EXERCISE * exercises


def sections(notebook: NotebookNode) -> dict[str, float]:
    """Estimate the minutes of each section, from the goal to the appendix."""
    title, counted = "goal", {"goal": 0.0}
    for cell in notebook.cells:
        pieces = (
            re.split(r"^## (.+)$", cell.source, flags=re.M) if cell.cell_type == "markdown" else [cell.source]
        )
        for text, heading in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            part = NotebookNode(cell, source=text)
            counted[title] = counted.get(title, 0) + (minutes([part]) if text.strip() else 0)
            if heading:
                title = (
                    "goal" if heading in BEFORE else "the rest" if heading in AFTER else heading.rstrip("?")
                )
    counted["the rest"] = counted.pop("the rest", 0.0)
    return counted


def measure(number: str) -> tuple[str, int, int]:
    """Read a notebook's title, a learner's minutes and the machine's seconds."""
    notebook = read(number)
    title = notebook.cells[0].source.partition("\n")[0].removeprefix("# ")
    return title, round(minutes(notebook.cells)), notebook.metadata.trainyard.seconds


def slot(number: str) -> int:
    """Return a notebook's minutes in an agenda: the learner's, the machine's, and a tenth for questions."""
    _, reading, machine = measure(number)
    return 5 * round(1.1 * (reading + machine / 60) / 5)


def fill_guide(text: str) -> str:
    """Write the minutes of notebooks and sections into the guide's tables."""

    def row(match: re.Match[str]) -> str:
        counted = sections(read(match[1])).items()
        listed = "; ".join(f"{title} {max(1, round(part))}" for title, part in counted)
        return f"| {match[1]} | {listed} | {match[3]} |"

    head, mark, table = text.partition("### Minutes by section")
    table, end, tail = table.partition("\n## ")
    table = re.sub(r"^\| (\d\d) \| (.*) \| (.*) \|$", row, table, flags=re.M)
    agenda = re.compile(r"(\| (?:\[(\d\d)\]\(\S+\)(?:: [^|]*)?|(\d\d)) \| )\d+(?= \|)")
    before, heading, plan = head.partition("## Agenda")
    plan = agenda.sub(lambda match: f"{match[1]}{slot(match[2] or match[3])}", plan)
    return "".join((before, heading, plan, mark, table, end, tail))


def rows(plan: tuple[str, ...], clock: datetime) -> tuple[str, datetime]:
    """Write the rows of an agenda from a start time; return them and the end time."""
    lines = []
    for entry in plan:
        checkpoint, skip = CHECKPOINTS.get(entry, ("", ""))
        if entry in BESIDE:
            title, reading, seconds, total = entry, BESIDE[entry], "", BESIDE[entry]
        else:
            name, reading, machine = measure(entry)
            title, seconds, total = f"{entry} {escape(name)}", f"{machine} s", slot(entry)
        pause = ' class="pause"' if entry in ("break", "lunch") else ""
        cells = (f"{clock:%H:%M}", title, f"{reading} min", seconds, checkpoint, skip)
        lines.append(f"<tr{pause}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        clock += timedelta(minutes=total)
    return "\n".join(lines), clock


def render() -> str:
    """Write the page."""
    parts = []
    for title, plan in (("A day", FULL), ("Half a day", HALF)):
        body, end = rows(plan, datetime(2026, 1, 1, 9))
        names = ("from", "", "you", "machine", "checkpoint", "skip first")
        head = f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"
        parts.append(f"<h2>{title}: 09:00 to {end:%H:%M}</h2>\n<table>\n{head}\n{body}\n</table>")
    intro = (
        "Reckoned, not timed: reading, exercises, the machine's seconds on two cores, a tenth for questions."
    )
    head_html = (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>The day on one page</title>'
    )
    style = f"<style>\n{STYLE}\n</style>"
    return "\n".join(
        [head_html, style, f"<h1>The day on one page</h1>\n<p>{intro}</p>", *parts, BELOW, "</html>", ""]
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    GUIDE.write_text(fill_guide(GUIDE.read_text("utf-8")), encoding="utf-8")
