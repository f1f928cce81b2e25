"""Write docs/day.html: half a day and a day of the course on one page of A4, for the instructor's pocket.

    .venv/bin/python tools/day_sheet.py

Minutes are those of each notebook's first cell (words, lines, cells, exercises), seconds of the machine those
of its metadata; a tenth comes on top for questions. Print it from a browser.
"""

import json
import re
from datetime import datetime, timedelta
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "day.html"
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
# What everybody should see before the next one begins; what the rest of the lesson does not need.
CHECKPOINTS = {
    "welcome": ("<code>trainyard doctor</code> without a line that is missing", ""),
    "00": ("a speed-up by Amdahl's law", "from <em>Memory</em> on"),
    "01": ("four nodes Ready, a Job of three pods", "<em>The nodes</em>"),
    "02": ("a claim is Bound, read by pods of two nodes", "<em>When it goes wrong</em>"),
    "03": ("a line of the Dockerfile that checks", "all but the exercise"),
    "04": ("a dataset on the volume", "<em>Sequential, then concurrent</em>"),
    "05": ("losses of four ranks, accuracy above 0.9", "without simulation"),
    "06": ("half the steps each; the model on the volume", "the appendix: a slide remains"),
    "07": ("the losses of a script that knows no cluster", "TensorBoard"),
    "08": ("a killed worker, and the same loss", "<em>Stop a node</em>"),
    "09": ("a PyTorchJob has Succeeded", "<em>Pods or processes?</em>"),
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


def measure(number: str) -> tuple[str, int, int]:
    """Read a notebook's title, its minutes for a learner, and its seconds for the machine."""
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    notebook = json.loads(path.read_text("utf-8"))
    first = "".join(notebook["cells"][0]["source"])
    minutes = re.search(r"^\| Time \| (\d+) minutes", first, re.MULTILINE)
    assert minutes, f"{path.name} does not say its minutes"
    return (
        first.partition("\n")[0].removeprefix("# "),
        int(minutes[1]),
        notebook["metadata"]["trainyard"]["seconds"],
    )


def rows(plan: tuple[str, ...], clock: datetime) -> tuple[str, datetime]:
    """Write a plan's rows from a time on; return them and the time at its end."""
    lines = []
    for entry in plan:
        checkpoint, skip = CHECKPOINTS.get(entry, ("", ""))
        if entry in BESIDE:
            title, minutes, seconds, total = entry, BESIDE[entry], "", BESIDE[entry]
        else:
            name, minutes, machine = measure(entry)
            title, seconds, total = (
                f"{entry} {escape(name)}",
                f"{machine} s",
                5 * round(1.1 * (minutes + machine / 60) / 5),
            )
        pause = ' class="pause"' if entry in ("break", "lunch") else ""
        cells = (f"{clock:%H:%M}", title, f"{minutes} min", seconds, checkpoint, skip)
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
    begin = '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>The day on one page</title>'
    style = f"<style>\n{STYLE}\n</style>"
    return "\n".join(
        [begin, style, f"<h1>The day on one page</h1>\n<p>{intro}</p>", *parts, BELOW, "</html>", ""]
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
