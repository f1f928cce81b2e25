"""``python -m bench.publish``: write docs/performance.md, with a plot of each figure, from what was measured.

A run's results replace earlier results of the same measures in docs/performance.json; others are kept.
Results of a busy machine are left out. So the page can combine several runs, each measure with its date and
machine. The docstring of a module in `bench.measures` describes how it is measured, and what bounds it.
"""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plots, timelines
from bench.__main__ import OUTPUT
from bench.machine import BUSY
from bench.measures import MEASURES
from bench.results import MET, MISSED, Limit, Result, number

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = "images/performance"
TIMELINES = "elastic.md"  # in it, what is between these is written from the JSON
BEGIN, END = "<!-- python -m bench.publish -->", "<!-- bench.publish: the end -->"
INTRODUCTION = """# Performance

How fast the kit is, compared with similar tools (its *peers*). `make bench` measures both in alternating
rounds of one run on the same machine. A value is the median of all rounds; the dots in the plots are the
rounds. A ratio is our value divided by the peer's: compare ratios, because machines differ.
`python -m bench.publish` writes this page.

<picture>
  <source media="(prefers-color-scheme: dark)" srcset="images/performance/overview-dark.svg">
  <img src="images/performance/overview.svg" alt="{alternative}">
</picture>
"""
# The wait, the measure, and a text of the row: the first matching row is compared with the other tool.
FELT = (
    ("first lesson: from no cluster to a job of four pods that has trained", "creation", "trained"),
    ("first pod: from no cluster to a container that runs", "creation", "first pod"),
    ("a pod, once there is a cluster", "pod_start", "p50"),
    ("a Job of 200 pods", "many_pods", "Job"),
    ("first step of a job of four pods", "first_step", "warm, torchrun"),
    ("first step, when each pod imports torch itself", "first_step", "cold, torchrun"),
    ("recovery: from a worker's loss to the next step", "elastic_recovery", "SIGKILL"),
    ("thirty attendees, who launch two pods each at once", "attendees", "attendees"),
)
FELT_HEADING = """
What attendees of a workshop wait for, with the kit and with the alternative: a cluster with Kubernetes' own
kubelet, containerd and runc, as in kind, k3d and minikube, or torchrun alone.

| From … to … | Here | Alternative | Ratio | Alternative used |
| --- | ---: | ---: | ---: | --- |
"""
OTHERS = """
Published figures for the time from the command until an app and DNS answer, from minikube's
[benchmark of v1.26.1](https://minikube.sigs.k8s.io/docs/benchmarks/timetok8s/v1.26.1/) of August 2022, on its
own machine: k3d 33.2 s, kind 46.6 s, minikube 56.8 s.
"""
PROFILES = """
## Profiles

Where the slowest paths spend their time, before and after the last changes to them, and how the cost grows
with the number of attendees.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Add a run's results to the published ones, and rewrite the page and plots."""
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, default=[OUTPUT], help=f"default {OUTPUT}")
    options = parser.parse_args(arguments)
    stored, folder = DOCS / "performance.json", DOCS / FOLDER
    measures = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    for path in options.results:
        measures |= measured(json.loads(path.read_text(encoding="utf-8")))
    measures = {
        name: measure for name, measure in measures.items() if name in MEASURES and _quiet(name, measure)
    }
    folder.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(measures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plots.save_overview(_all(measures), folder)
    for name, measure in measures.items():
        plots.save(_results(measure), folder / name)
    (DOCS / "performance.md").write_text(page(measures, profiles=DOCS / "profiles"), encoding="utf-8")
    for name, measure in measures.items():
        if faults := timelines.by_fault(_results(measure)):
            plots.save_timelines(faults, folder / f"{name}-timelines")
            document = DOCS / TIMELINES
            document.write_text(
                with_timelines(document.read_text(encoding="utf-8"), name, measure), encoding="utf-8"
            )
    return 0


def with_timelines(text: str, name: str, measure: dict[str, Any]) -> str:
    """Replace what is between the two comments of a document by the picture and table of a measure."""
    faults = timelines.by_fault(_results(measure))
    message = "; ".join(
        f"{fault}: {', '.join(f'{kind} {timeline.text}' for kind, timeline in runs.items())}"
        for fault, runs in faults.items()
    )
    block = f"""{BEGIN}
<picture>
  <source media="(prefers-color-scheme: dark)" srcset="{FOLDER}/{name}-timelines-dark.svg">
  <img src="{FOLDER}/{name}-timelines.svg" alt="{message}">
</picture>

{timelines.table(faults)}
{_measured_at(measure)}
{END}"""
    return re.sub(f"{BEGIN}.*{END}", lambda match: block, text, flags=re.DOTALL)


def _quiet(name: str, measure: dict[str, Any]) -> bool:
    """Check whether the machine was quiet enough for a figure; print what is left out."""
    if measure["load"] > BUSY:
        print(f"{name} is left out: the load average was {measure['load']:g}, not {BUSY:g} at most")
    return measure["load"] <= BUSY


def measured(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's results by measure, without details.

    Args:
        run: The JSON of ``python -m bench``.

    Returns:
        For each measure ``date``, ``machine``, ``rounds``, ``load`` (of the minute before) and ``results``.
    """
    if run["quick"]:
        raise SystemExit("the results of a quick run are not published: measure without --quick")
    facts = {"date": run["began"][:10], "machine": run["machine"]}
    return {
        name: facts
        | {
            "rounds": _rounds_of(name, run),
            "load": state["load"],
            "results": [
                {key: value for key, value in result.items() if key not in ("measure", "details")}
                | ({"timelines": stored} if (stored := result["details"].get("timelines")) else {})
                for result in run["results"]
                if result["measure"] == name
            ],
        }
        for name, state in run["machine_before"].items()
        if any(result["measure"] == name for result in run["results"])
    }


def _rounds_of(name: str, run: Mapping[str, Any]) -> int:
    """Return the rounds of a measure: long ones have fewer than the run."""
    samples = [len(result["samples"]["ours"]) for result in run["results"] if result["measure"] == name]
    return min(run["rounds"], max(samples))


def page(measures: dict[str, Any], *, profiles: Path) -> str:
    """Return the page: a table of all figures, then each measure with its plot and method.

    Args:
        measures: The published results, by measure.
        profiles: The folder of profiles: Markdown, or plain text.
    """
    ordered = {name: measures[name] for name in MEASURES if name in measures}
    results = _all(ordered)
    met, missed = (sum(result.verdict == verdict for result in results) for verdict in (MET, MISSED))
    counted = f"{met} goals are met, {missed} missed"
    parts = [
        INTRODUCTION.format(alternative=f"ratios to peers and goals: {counted}"),
        *_felt(ordered),
        f"\n{counted.capitalize()}:\n",
    ]
    parts += [
        "\n| What | Ours | Peer's | Ratio | Goal | | Peer |\n| --- | ---: | ---: | ---: | --- | --- | --- |\n"
    ]
    parts += [_row(name, result) for name, measure in ordered.items() for result in _results(measure)]
    parts += [_section(name, measure) for name, measure in ordered.items()]
    absent = [name for name in MEASURES if name not in measures]
    if absent:
        names = ", ".join(f"`{name}`" for name in absent)
        parts.append(f"\n## Not measured\n\n{names}: `python -m bench --only {absent[0]}` measures them.\n")
    if texts := sorted(profiles.glob("*.*")):
        parts.append(PROFILES)
        parts += [_profile(text) for text in texts]
    return "".join(parts)


def _felt(measures: dict[str, Any]) -> list[str]:
    """Return the table of waits that users notice and that were measured with the other tool."""
    rows = []
    for title, name, part in FELT:
        results = _results(measures[name]) if name in measures else []
        lines = [line for line in results if part in line.what and line.theirs]
        for line in [line for line in lines if "kwok" not in line.peer][:1]:  # its pods are pretended
            rows.append(_line(f"[{title}](#{name})", *_figures(line), line.peer))
    return [FELT_HEADING, *rows, OTHERS] if rows else []


def _row(name: str, result: Result) -> str:
    verdict = (str(result.limit or ""), result.verdict)
    return _line(f"[{result.what}](#{name})", *_figures(result), *verdict, result.peer)


def _figures(result: Result) -> tuple[str, str, str]:
    return number(result.value, result.unit), result.peer_text, result.ratio_text


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _section(name: str, measure: dict[str, Any]) -> str:
    results = _results(measure)
    docstring = inspect.getdoc(sys.modules[MEASURES[name].__module__]) or ""
    heading, _, method = docstring.partition("\n\n")
    message = "; ".join(f"{result.what}: {number(result.value, result.unit)}" for result in results)
    notes = "".join(f"\n{note[:1].upper()}{note[1:]}.\n" for note in _notes(results))
    return f"""
## {name}

{heading}

<picture>
  <source media="(prefers-color-scheme: dark)" srcset="{FOLDER}/{name}-dark.svg">
  <img src="{FOLDER}/{name}.svg" alt="{message}">
</picture>

{method}
{notes}
{_measured_at(measure)}
"""


def _measured_at(measure: dict[str, Any]) -> str:
    machine, rounds = measure["machine"], f"{measure['rounds']} round{'s' * (measure['rounds'] > 1)}"
    return (
        f"{measure['date']}, {rounds}, {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gb']:g} GB, {machine['system']}, "
        f"Python {machine['python']}, torch {machine['torch']}, "
        f"{'root' if machine['root'] else 'not root'}; load average before it {measure['load']:g}."
    )


def _notes(results: Sequence[Result]) -> list[str]:
    """Return the distinct notes of results; a note of one result names it."""
    notes = dict.fromkeys(result.notes for result in results if result.notes)
    shared = {note: [result.what for result in results if result.notes == note] for note in notes}
    return [note if len(whats) > 1 else f"{whats[0]}: {note}" for note, whats in shared.items()]


def _profile(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return "\n" + re.sub("^#", "###", text, flags=re.MULTILINE)
    return f"\n### {path.stem}\n\n```text\n{text}```\n"


def _all(measures: dict[str, Any]) -> list[Result]:
    return [result for measure in measures.values() for result in _results(measure)]


def _results(measure: dict[str, Any]) -> list[Result]:
    return [
        Result(
            what=result["what"],
            unit=result["unit"],
            ours=tuple(result["samples"]["ours"]),
            peer=result["peer"] or "",
            theirs=tuple(result["samples"]["peer"]),
            absent=result["peer_absent"] or "",
            limit=Limit(**result["limit"]) if result["limit"] else None,
            notes=result["notes"] or "",
            timeout=result.get("timeout", 0),
            details={"timelines": result.get("timelines", {})},
        )
        for result in measure["results"]
    ]


if __name__ == "__main__":
    sys.exit(main())
