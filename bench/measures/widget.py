"""What a live picture of a run costs: the kernel's CPU, and bytes to the browser.

Four ranks report twenty times a second each, for a minute, through pods' logs and the API server. The kernel
is a process of its own that does nothing else; its threads that follow pods and logs count as well as the
drawing.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import kitlib as kit
from bench import widget_kernel
from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.results import Limit, Result

RANKS, PER_SECOND = 4, 20
SECONDS, QUICK_SECONDS = 60, 10
PERCENT, KILOBYTES = 5, 50
NAME = "widget"
TRAINER = """
import json, math, os, sys, time
rank, begin = int(os.environ["NODE_RANK"]), time.monotonic()
for step in range(10**9):
    fields = {"step": step, "epoch": step // 100, "loss": round(2 * math.exp(-step / 300), 5)}
    event = {"event": "step", "time": time.time(), "rank": rank, "world_size": RANKS}
    print(json.dumps(event | fields | {"images_per_s": 812.5 + rank}, separators=(",", ":")), flush=True)
    time.sleep(max(0, begin + (step + 1) / PER_SECOND - time.monotonic()))
"""


def measure(lab: Lab) -> list[Result]:
    """Watch reporting ranks, once a round."""
    lab.clear("theirs")
    seconds = QUICK_SECONDS if lab.quick else SECONDS
    run = _launch(lab.ours)
    try:
        lab.report("watching a run that reports")
        found = [_watch(lab.ours.name, seconds) for _ in range(lab.rounds)]
    finally:
        run.delete()
    about = f"{RANKS} ranks × {PER_SECOND} events/s"
    return [
        Result(
            what=f"live picture of {about}: {what}",
            unit=unit,
            ours=tuple(sample[key] for sample in found),
            limit=Limit(most, of="value", unit=unit),
            details={"rounds": found},
        )
        for what, key, unit, most in (
            ("CPU of the kernel", "percent", "% of a core", PERCENT),
            ("bytes to the browser", "kilobytes", "kB/s", KILOBYTES),
        )
    ]


def _launch(cluster: kit.Cluster) -> kit.Run:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Path(folder) / "reporting.py"
        trainer.write_text(TRAINER.replace("RANKS", str(RANKS)).replace("PER_SECOND", str(PER_SECOND)))
        command = ["python", "/trainyard/trainer/reporting.py"]
        pod = {"containers": [{"name": "pytorch", "command": command}], "terminationGracePeriodSeconds": 1}
        job = kit.IndexedJob(trainer, nodes=RANKS, name=NAME)
        return kit.launch(job.patch({"spec": {"template": {"spec": pod}}}), cluster=cluster)


def _watch(cluster: str, seconds: float) -> dict[str, float]:
    command = [sys.executable, widget_kernel.__file__, cluster, NAME, str(seconds)]
    done = subprocess.run(
        command, env=os.environ, capture_output=True, text=True, timeout=seconds + 120, check=False
    )
    if done.returncode:
        raise MeasureFailed(f"the kernel with the widget ended with an error:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["lines"] < 0.8 * RANKS * PER_SECOND:
        raise MeasureFailed(
            f"the ranks reported {found['lines']:.0f} times a second: the machine is too busy"
        )
    return found
