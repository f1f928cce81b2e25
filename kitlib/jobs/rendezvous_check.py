"""Check whether the ranks of a program will meet, by its text, before it is launched. Pure.

What its ranks and its command show afterwards is in `kitlib.causes.rules.programs`.
"""

import re

from kitlib.jobs.base import Job, TrainingJob
from kitlib.k8s import names

# What forms a process group, or is a library that does.
_GROUPS = re.compile(
    r"init_process_group|Trainer|[Aa]ccelerat|[Ll]ightning|Fabric|deepspeed|horovod|hvd\.|\bray\b|jax|tensorflow"
    r"|keras|composer|colossalai|megatron|fairseq|init_device_mesh|\belastic\b|ignite|mpi4py|monarch|torchft"
)
_EVALUATES = re.compile(r"\.eval\(\)|no_grad|inference_mode|\.(?:evaluate|predict|test|validate|generate)\(")
_TRAINS = re.compile(r"\.backward\(|\.fit\(|\.train\(|\.step\(\)|value_and_grad|\bgrad\(|GradientTape")
# An address of the pod itself; one that is the default of a variable does not count.
_LOCAL = re.compile(
    r"""(?:MASTER_ADDR|\b\w{0,20}(?:master|host|addr|coordinator)\w{0,20})["']?\s{0,4}\]?\s{0,4}[=:]\s{0,4}f?["'](?:localhost|127\.|\[?::1)"""
    r"""|TCPStore\(\s{0,40}["'](?:localhost|127\.)|(?:tcp|gloo)://(?:localhost|127\.)"""
)
_ONE_NODE = re.compile(r"\b(?:notebook_launcher|Trainer|Fabric)\(")
_SPAWNS = re.compile(r"\bspawn\(|start_processes\(|Process\(|Pool\(")
_PLACES = re.compile(  # by which a program that starts its ranks itself finds out its pod's number
    r"NODE_RANK|COMPLETION_INDEX|HOSTNAME|hostname|uname\(|num_nodes|machine_rank|node_rank|\bray\b|dask|SLURM"
    r"|OMPI_|distributed\.initialize|elastic_launch"
)
# Libraries whose processes meet no other, unless the second is in the text or its settings.
_LIBRARIES = (
    (re.compile(r"\b(?:import|from) horovod\b"), ("HOROVOD_",), "Horovod's ranks meet by horovodrun alone"),
    (
        re.compile(r"\b(?:import|from) (?:jax|flax)\b"),
        ("distributed.initialize",),
        "JAX meets no other process without jax.distributed.initialize()",
    ),
)
_OWN_RANKS = '`launcher="torchrun"` starts its ranks; or read NODE_RANK and MASTER_ADDR in it'


def find_missing_rendezvous(job: Job) -> tuple[str, str]:
    """Find out why the ranks of a job will not meet, by its sources, arguments and launcher.

    Returns:
        The problem and the fix; ``evaluates`` for a program that trains nothing, whose ranks
        need not meet; empty for nothing.
    """
    if not isinstance(job, TrainingJob) or job.layout is None or job.nodes * job.processes_per_node < 2:
        return "", ""
    if hasattr(job, "servers"):  # parameter servers: their workers form no process group
        return "", ""
    sources = [source for source in job.sources.values() if isinstance(source, str)]
    text = "\n".join(sources)
    if _EVALUATES.search(text) and not _TRAINS.search(text):
        return names.EVALUATES, ""
    settings = " ".join([text, *job.args, *(item["name"] for item in job.env)])
    python = getattr(job, "launcher", "") == "python"
    local = job.nodes > 1 and any(
        _LOCAL.search(source) and (python or _SPAWNS.search(source)) for source in sources
    )
    calls = _ONE_NODE.search(text) if "lightning" in text or "notebook_launcher" in text else None
    devices = re.search(r"\bdevices\s{0,2}=\s{0,2}(\d{1,4})\b", text)  # of all nodes, in Lightning
    counted = not python and devices and int(devices[1]) == job.nodes * job.processes_per_node
    what = fix = ""
    if not _GROUPS.search(text):
        what = "nothing in it forms a process group, so each rank trains alone"
        fix = "call torch.distributed.init_process_group()"
    elif job.nodes > 1 and calls and "num_nodes" not in settings.lower() and not counted:
        description = "alone, on localhost" if python or "launcher" in calls[0] else "alone, or refuses to"
        what = f"{calls[0]}) without num_nodes trains on each of the {job.nodes} nodes {description}"
        fix = _OWN_RANKS if "launcher" in calls[0] else f"write {calls[0]}num_nodes={job.nodes})"
    elif local and "://" not in " ".join(job.args):
        what, fix = "it starts ranks that meet on localhost, so each pod trains alone", _OWN_RANKS
    elif python and job.nodes > 1 and not _PLACES.search(settings):
        what, fix = 'launcher="python" gives no ranks, and nothing in it reads NODE_RANK', _OWN_RANKS
    elif not re.search(r"init_process_group|Trainer|Accelerat", text):
        for library, needs, reason in _LIBRARIES:
            if library.search(text) and not any(word in settings for word in needs):
                return reason, _OWN_RANKS
    return what, fix
