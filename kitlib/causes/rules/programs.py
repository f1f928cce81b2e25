"""Programs that do not match their job: ranks that never meet, idle GPUs, a missing module.

The first two end as Succeeded, so `Run.wait` warns of them as well. They are found in what programs and
libraries print when they start.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from kitlib.causes.cause import CERTAIN, LIKELY, Cause
from kitlib.causes.facts import Facts
from kitlib.display.tracebacks import Line
from kitlib.k8s import names, pods
from kitlib.k8s.manifests import Object
from kitlib.k8s.quantities import GPU
from kitlib.metrics.events import parse_line

START_LINES = 400  # of a log, in which a program reports its settings
END_LINES = 40  # in which a rank reports at its end that torch found no device
# A world of one, as Lightning and Accelerate print it; or, by DeepSpeed and torchrun, of one machine.
_ALONE = re.compile(
    r"MEMBER: 1/1\b|Num processes: 1$|Starting with 1 processes|distributed_type: NO\b"
    r"|\[Gloo\] Rank \d+ is connected to 0 peer|\bworld[ _]size\W{1,4}1$"
    r"|nnodes=1, num_local_procs|World Info dict: \{'localhost|--rdzv-endpoint=localhost:0\b",
    re.I,
)
_TOGETHER = re.compile(
    r"MEMBER: \d+/(?!1\b)\d+|Num processes: (?!1$)\d+|\[Gloo\] Rank \d+ is connected to [1-9]"
    r"|\b[Ww]orld[ _][Ss]ize\W{1,4}(?!1\b)\d+|destroy_process_group\(\) was not called|\bNCCL version \d"
)
# A rank and the size of its world; of two pods each with a rank 0 none has met the other.
_RANK = re.compile(
    r"GLOBAL_RANK: (\d{1,6}), MEMBER: \d{1,6}/(\d{1,6})"
    r"|(?<![\w ])(?:global[ _])?rank[ :=]{1,2}(\d{1,6})(?: of |/)(\d{1,6})\b",
    re.I,
)
_GLOO = re.compile(r"\[Gloo\] Rank (\d+) is connected to (\d+) peer")
_ELASTIC = re.compile(
    r"nnodes[=, '\"]{1,4}\d+:|PET_NNODES', 'value': '\d+:|elasticPolicy|ElasticJob|PodTemplate"
)
# Commands that start a separate world in each pod, by the option that they lack or have.
_COMMANDS = {
    "--num_machines": re.compile(
        r"\baccelerate(?:[- ]launch|\.commands\.launch)\b(?!.*--(?:num_machines|config_file))"
    ),
    "--nnodes": re.compile(
        r"\b(?:torchrun|torch\.distributed\.(?:run|launch))\b(?=.*(?:--standalone|--nnodes[= ]'?1(?![\d:])))"
    ),
    "--nnodes of all pods": re.compile(
        r"\b(?:torchrun|torch\.distributed\.(?:run|launch))\b(?!.*--(?:nnodes|rdzv))"
    ),
    "--hostfile": re.compile(
        r"(?:^|[;&|] ?| -\w{0,2}c )deepspeed (?=.*\.py)(?!.*(?:--hostfile|-H|--node_rank)\b)"
    ),
    "hosts": re.compile(
        r"(?:^|[;&|] ?| -\w{0,2}c )(?:horovodrun|mpirun|mpiexec) (?!.*(?: -H|-hosts?|hostfile|-discovery))"
    ),
    "--num-nodes": re.compile(r"(?:^|[;&|] ?| -\w{0,2}c )(?:lightning|fabric) run\b(?!.*--num[-_]nodes)"),
}
# That no device is used, with the versions that torch and its CUDA name.
_NO_DEVICE = re.compile(
    r"torch finds no CUDA device|NVIDIA driver on your system is too old|Found no NVIDIA driver"
    r"|CUDA driver version is insufficient|not compiled with CUDA enabled|CUDA initialization: "
    r"|GPU available: False|no CUDA-capable device|CUDA unknown error|cuda.is_available\(\)\W{1,4}False"
    r"|\b(?:device|using)\W{1,4}(?:device\W{1,4})?cpu\b",
    re.I,
)
_DEVICE = re.compile(r"GPU available: True|\bdevice\W{1,6}cuda\b|Using cuda device|\bsimulated_acc", re.I)
_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,200})'")


def separate_worlds(facts: Facts) -> Iterator[Cause]:
    """Find ranks that train alone, in each pod a separate world.

    Their starts say a world of one, or two pods have the same rank of a world; or nothing speaks of a larger
    world, and the launch has read in the program that they cannot meet, or their command starts a world in
    each pod. That does not end a run: one that has failed has another cause. Workers of parameter servers
    form none, and what only evaluates needs none.
    """
    note = _note(facts, names.RANKS_ALONE)
    if facts.phase == "Failed" or note == names.EVALUATES or any(map(pods.is_replica_id, facts.logs)):
        return
    if any(_variable(pod, "TORCHFT_LIGHTHOUSE") for pod in facts.pods):  # by which groups of replicas meet
        return
    alone, together = dict[int | str, Line](), False
    starts = {rank: list(islice(lines, START_LINES)) for rank, lines in facts.logs.items()}
    for rank, lines in starts.items():
        for line in lines:
            event = parse_line(line.text) if '"start"' in line.text else None
            together |= bool(_TOGETHER.search(line.text) or event and event.world_size > 1)
            if _ALONE.search(line.text) or event and event.event == "start" and event.world_size == 1:
                alone.setdefault(rank, line)
    duplicate, size = _duplicate_rank(facts, starts)
    line = duplicate or next(iter(alone.values()), Line("", ""))
    everywhere = len(alone) > 1 and len(alone) >= len(facts.logs) and not together
    if not duplicate and not everywhere and (size or together and "localhost" not in note):
        return
    reason = line.text[:400] if duplicate or everywhere else note or _command_without_rendezvous(facts)
    if not reason:
        return
    world = f", a world of {size}" if duplicate else ", a world of one" if everywhere else ""
    yield Cause(
        kind="NeverMet",
        who=f"{max(len(alone), len(facts.pods))} {'pods' if duplicate else 'ranks'}",
        what=f"never met: each trains alone{world}",
        fix="torchrun --nnodes; Lightning: Trainer(num_nodes=…); accelerate launch --num_machines; "
        "a script: torch.distributed.init_process_group()",
        evidence=(reason,),
        certainty=LIKELY,
        time=line.time,
    )


def _duplicate_rank(facts: Facts, starts: Mapping[int | str, Sequence[Line]]) -> tuple[Line | None, int]:
    """Find a rank of the largest world that two pods have, and that world's size; 0 where no line has it.

    Elastic workers get other ranks in each round. Where GPUs are, gloo has groups beside the world.
    """
    elastic = _ELASTIC.search(f"{facts.main} {[pod['spec'] for pod in facts.pods]}")
    has_gpus = any(GPU in str(pod["spec"]) for pod in facts.pods)
    claims: dict[tuple[int, int], dict[int | str, Line]] = {}
    for pod, lines in starts.items():
        for line in lines:
            match = _RANK.search(line.text[:2000]) or (None if has_gpus else _GLOO.search(line.text))
            event = parse_line(line.text) if '"start"' in line.text else None
            if match:
                rank, count = (int(part) for part in match.groups() if part)
                size = count + (match.re is _GLOO)
            elif event and event.event == "start":
                rank, size = event.rank, event.world_size
            else:
                continue
            claims.setdefault((size, rank), {}).setdefault(pod, line)
    largest = max((size for size, _ in claims), default=0)
    same = [lines for (size, _), lines in claims.items() if size == largest and len(lines) > 1]
    if largest < 2 or elastic or not same:
        return None, largest if largest > 1 else 0
    return next(iter(same[0].values())), largest


def _variable(pod: Object, name: str) -> str:
    """Read a variable of a pod's containers."""
    variables = [item for container in pod["spec"]["containers"] for item in container.get("env") or ()]
    return next((str(item.get("value", "")) for item in variables if item["name"] == name), "")


def _command_without_rendezvous(facts: Facts) -> str:
    """Describe a command that starts a separate world in each pod; empty if there is none."""
    for pod in facts.pods if len(facts.pods) > 1 else ():
        for container in pod["spec"]["containers"]:
            words = [*(container.get("command") or []), *(container.get("args") or [])]
            command = " ".join(words).replace("\\\n", " ").replace("\n", " ; ")
            hidden = container.get("envFrom") or _variable(pod, "PET_NNODES") not in ("", "1")
            for missing, pattern in _COMMANDS.items():
                if pattern.search(command[:2000]) and not (hidden and missing.endswith("pods")):
                    return f"its command starts a world in each pod, without {missing}: {command[:300]}"
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
        log = facts.lines_of(pod) if count and not _are_declared(facts, pod) else []
        lines = [*log[:START_LINES], *log[START_LINES:][-END_LINES:]]
        if not lines or any(_DEVICE.search(line.text[:2000]) for line in lines):
            continue
        if line := next((line for line in lines if _NO_DEVICE.search(line.text[:2000])), None):
            rank = pods.replica_id(pod)
            yield Cause(
                kind="GpusUnused",
                who=pods.display_name(rank),
                what=f"has {count} GPU{'s' * (count > 1)} and trains on the CPU",
                fix="an image whose CUDA the driver supports: kubectl exec POD -- nvidia-smi shows the "
                "driver, torch.version.cuda what torch was built for; or `gpus=0`",
                evidence=(line.text[:400],),
                certainty=LIKELY,
                time=line.time,
                rank=rank,
            )
            return


def _are_declared(facts: Facts, pod: Object) -> bool:
    """Check whether a pod's GPUs are declared by its node, which has none."""
    node = facts.find("Node", pod["spec"].get("nodeName", "")) or {"metadata": {}}
    return names.DECLARED_GPUS in (node["metadata"].get("labels") or {})


def missing_module(facts: Facts) -> Iterator[Cause]:
    """Find a module that is missing in the pods but exists here, and name the argument that sends it.

    It precedes the cause that is known from its traceback, which names no argument.
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
                    fix=f'`root="{place}"` carries it: `kit.launch(…, root="{place}")`; or `files=[…]`, '
                    "where the program computes its name",
                    evidence=(line.text[:400],),
                    certainty=CERTAIN,
                    time=began,
                    rank=rank,
                )
                return


def _place_of(top: str) -> Path | None:
    """Find a module's folder: the working directory, one of its parents or of its subfolders."""
    current = Path.cwd()
    below = [path for path in sorted(current.glob("*/")) if not path.name.startswith(".")]
    for folder in (current, *current.parents[:3], *below[:200]):
        if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
            return folder
    return None


RULES = (missing_module, separate_worlds, gpus_unused)
WARNINGS = (separate_worlds, gpus_unused)  # of runs that nevertheless succeed
