"""What a program does otherwise than its job: its ranks never meet, its GPUs idle, a module is missing.

The first two end as Succeeded, so that `Run.wait` warns of them as well. They are read in what programs and
libraries print at their start.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kitlib.causes.cause import CERTAIN, LIKELY, Cause
from kitlib.causes.facts import Facts
from kitlib.display.tracebacks import Line
from kitlib.k8s import names, pods
from kitlib.k8s.quantities import GPU
from kitlib.metrics.events import parse_line

START_LINES = 400  # of a log, in which a program says how it begins
# A world of one, as Lightning and Accelerate print it.
_ALONE = re.compile(
    r"MEMBER: 1/1\b|Num processes: 1$|Starting with 1 processes|distributed_type: NO\b"
    r"|\[Gloo\] Rank \d+ is connected to 0 peer|\bworld[ _]size\W{1,4}1$",
    re.I,
)
_TOGETHER = re.compile(
    r"MEMBER: \d+/(?!1\b)\d+|Num processes: (?!1$)\d+|\[Gloo\] Rank \d+ is connected to [1-9]"
    r"|\b[Ww]orld[ _][Ss]ize\W{1,4}(?!1\b)\d+|destroy_process_group\(\) was not called|\bNCCL version \d"
)
# Without a count of machines it starts a world of its own in each pod.
_ACCELERATE = re.compile(
    r"\baccelerate(?:[- ]launch|\.commands\.launch)\b(?!.*--(?:num_machines|config_file))"
)
# That no device is used, with the versions that torch and its CUDA name.
_NO_DEVICE = re.compile(
    r"torch finds no CUDA device|NVIDIA driver on your system is too old|Found no NVIDIA driver"
    r"|CUDA driver version is insufficient|not compiled with CUDA enabled|CUDA initialization: "
    r"|GPU available: False|no CUDA-capable device|CUDA unknown error|cuda.is_available\(\)\W{1,4}False"
    r"|\b(?:device|using)\W{1,4}(?:device\W{1,4})?cpu\b",
    re.I,
)
_DEVICE = re.compile(r"GPU available: True|\bdevice\W{1,6}cuda\b|Using cuda device", re.I)
_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,200})'")


def never_met(facts: Facts) -> Iterator[Cause]:
    """Find ranks of which each trains alone.

    Their starts say a world of one; or nothing speaks of a larger one, and the launch has read that the
    program forms no process group, or its command is an `accelerate launch` without a count of machines.
    That does not end a run: one that has failed has another cause. Workers of parameter servers form none.
    """
    if facts.phase == "Failed" or any(pods.is_replica_id(rank) for rank in facts.logs):
        return
    alone: dict[int | str, Line] = {}
    for rank, lines in facts.logs.items():
        for line in islice(lines, START_LINES):
            event = parse_line(line.text) if '"start"' in line.text else None
            if _TOGETHER.search(line.text) or event and event.world_size > 1:
                return
            if _ALONE.search(line.text) or event and event.event == "start" and event.world_size == 1:
                alone.setdefault(rank, line)
    line = next(iter(alone.values()), Line("", ""))
    reason = line.text[:400] if len(alone) > 1 and len(alone) >= len(facts.logs) else _foreseen(facts)
    if not reason:
        return
    yield Cause(
        kind="NeverMet",
        who=f"{max(len(alone), len(facts.pods))} ranks",
        what="never met: each trains alone, a world of one",
        fix="Lightning: Trainer(num_nodes=…, devices=…); accelerate launch --num_machines; a script: "
        "torch.distributed.init_process_group()",
        evidence=(reason,),
        certainty=LIKELY,
        time=line.time,
    )


def _foreseen(facts: Facts) -> str:
    """Say what the objects tell of ranks that cannot meet; empty for nothing."""
    if note := _note(facts, names.RANKS_ALONE):
        return note
    for pod in facts.pods if len(facts.pods) > 1 else ():
        for container in pod["spec"]["containers"]:
            command = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
            if _ACCELERATE.search(command.replace("\n", " ")):
                return f"its command has no --num_machines: {command[:300]}"
    return ""


def _note(facts: Facts, name: str) -> str:
    """Read an annotation of the run's main object."""
    notes = ((facts.main or {}).get("metadata") or {}).get("annotations") or {}
    return str(notes.get(name, ""))


def gpus_unused(facts: Facts) -> Iterator[Cause]:
    """Find pods that have GPUs, which are paid for, and train on the CPU, unless the launch allows it."""
    if _note(facts, names.IDLE_GPUS) == "allow":
        return
    for pod in facts.pods:
        limits = [item.get("resources", {}).get("limits") or {} for item in pod["spec"]["containers"]]
        count = sum(int(limit.get(GPU, 0)) for limit in limits)
        lines = list(islice(facts.lines_of(pod), START_LINES)) if count else []
        if not lines or any(_DEVICE.search(line.text[:2000]) for line in lines):
            continue
        if line := next((line for line in lines if _NO_DEVICE.search(line.text[:2000])), None):
            rank = pods.replica_id(pod)
            yield Cause(
                kind="GpusUnused",
                who=pods.display_name(rank),
                what=f"has {count} GPU{'s' * (count > 1)} and trains on the CPU",
                fix="an image whose CUDA the node's driver knows: kubectl exec POD -- nvidia-smi shows the "
                "driver, torch.version.cuda what torch was built for; or gpus=0",
                evidence=(line.text[:400],),
                certainty=LIKELY,
                time=line.time,
                rank=rank,
            )
            return


def missing_module(facts: Facts) -> Iterator[Cause]:
    """Find a module that is not in the pods but lies here, and say which argument carries it.

    It comes before what is known of its traceback, which begins earlier and names no argument.
    """
    for rank, lines in facts.logs.items():
        began = ""
        for line in lines:
            began = began or line.time
            match = _MODULE.search(line.text[:2000])
            place = _place_of(match[1].partition(".")[0]) if match else None
            if match and place:
                yield Cause(
                    kind="ModuleNotFound",
                    who=pods.display_name(rank),
                    what=f"cannot import {match[1]}, which lies in {place}",
                    fix=f'root="{place}" carries it: kit.launch(…, root="{place}"); or files=[…], '
                    "where the program computes its name",
                    evidence=(line.text[:400],),
                    certainty=CERTAIN,
                    time=began,
                    rank=rank,
                )
                return


def _place_of(top: str) -> Path | None:
    """Find the folder here, or above, or just below, in which a module lies."""
    here = Path.cwd()
    below = [path for path in sorted(here.glob("*/")) if not path.name.startswith(".")]
    for folder in (here, *here.parents[:3], *below[:200]):
        if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
            return folder
    return None


RULES = (missing_module, never_met, gpus_unused)
WARNINGS = (never_met, gpus_unused)  # of runs that succeed all the same
