"""The duration of the commands ``trainyard cluster create`` and ``delete``.

In addition to the creation itself (``creation``), a command starts Python and its imports.
"""

import subprocess
import sys
import time

from bench.lab import NODES, Lab
from bench.results import Limit, Result

LIMITS = {"create": Limit(2.3, of="value", unit="s"), "delete": Limit(0.5, of="value", unit="s")}
PROGRAM = [sys.executable, "-m", "trainyard_kit.cli", "cluster"]


def measure(lab: Lab) -> list[Result]:
    """Create and delete clusters from the command line, one after the other."""
    lab.clear()
    seconds: dict[str, list[float]] = {"create": [], "delete": []}
    for number in range(lab.rounds):
        name = f"command-{number}"
        lab.report(f"trainyard cluster create and delete, {number + 1} of {lab.rounds}")
        try:
            seconds["create"].append(_run("create", name, f"--nodes={NODES}"))
        finally:
            seconds["delete"].append(_run("delete", name))
    return [
        Result(
            what=f"trainyard cluster {verb}, {NODES} nodes, until the prompt is back",
            unit="s",
            ours=tuple(samples),
            limit=LIMITS[verb],
        )
        for verb, samples in seconds.items()
    ]


def _run(*arguments: str) -> float:
    """Run the command; return its duration in seconds."""
    start = time.monotonic()
    subprocess.run([*PROGRAM, *arguments], check=True, capture_output=True)
    return time.monotonic() - start
