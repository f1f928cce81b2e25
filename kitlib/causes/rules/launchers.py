"""Causes in torchrun's arguments: more nodes than pods, a duplicate node rank, an address of no pod.

Its ranks do not exist yet, so nothing is logged; the arguments are in the pods' commands and environment.
"""

import ipaddress
import re
from collections.abc import Iterator

from kitlib.causes.cause import CERTAIN, POSSIBLE, Cause
from kitlib.causes.facts import Facts
from kitlib.k8s import job_kinds, pods
from kitlib.k8s.manifests import Object

_TORCHRUN = re.compile(r"torchrun|torch\.distributed\.(?:run|launch)|elastic_launch")
_NODES = re.compile(r"(\d{1,6})(?::\d{1,6})?")


def wrong_arguments(facts: Facts) -> Iterator[Cause]:
    """Find the first of torchrun's arguments that keeps the pods of a run from their rendezvous."""
    calls = {pods.replica_id(pod): call for pod in facts.pods if (call := _call(pod)) is not None}
    if facts.phase not in ("Running", "Failed") or not calls or facts.main is None:
        return
    count = max(facts.desired, len(facts.pods))  # a TrainJob may leave it to its runtime
    for rank, call in calls.items():
        nodes = _NODES.fullmatch(call.get("nnodes", ""))
        if nodes and int(nodes[1]) > count:
            has = f"{count} pod{'s' * (count > 1)}"
            what = f"waits for {nodes[1]} nodes (--nnodes={nodes[0]}), and the run has {has}"
            fix = f"--nnodes={count}, or as many pods: `kit.launch(…, nodes={nodes[1]})`"
            yield _of_torchrun(rank, "Rendezvous", what, fix)
            return
    ranks = [(call.get("node_rank", ""), rank) for rank, call in calls.items()]
    for number, rank in ranks:
        same = [member for value, member in ranks if value == number]
        if number.isdigit() and len(same) > 1:
            what = f"has the same --node-rank={number} as that of {pods.display_name(same[1])}"
            yield _of_torchrun(
                rank, "NodeRank", what, "a number of its own for each pod: $(JOB_COMPLETION_INDEX)"
            )
            return
    known = {(pod.get("status") or {}).get("podIP") for pod in facts.pods}
    known |= {item["spec"].get("clusterIP") for item in facts.of("Service")}
    for rank, call in calls.items():
        address = call.get("master_addr", "")
        if len(calls) > 1 and _is_address(address) and address not in known and None not in known:
            what = f"looks for rank 0 at {address}, which is the address of no pod of the run"
            fix = "--master-addr: the name of rank 0's pod, <job>-0.<service>"
            yield _of_torchrun(rank, "MasterAddress", what, fix)
            return


def below_minimum(facts: Facts) -> Iterator[Cause]:
    """Find an elastic run that has fewer workers than it needs, and no pending ones."""
    if facts.main is None or facts.phase != "Pending":
        return
    desired, least, _ = job_kinds.limits(facts.main)
    live = [pod for pod in facts.pods if not pods.finished(pod) and not pods.deleted(pod)]
    if least < desired and 0 < len(live) < least and len(facts.pods) >= len(live):
        yield Cause(
            kind="BelowMinimum",
            who=f"{facts.main['kind']} {facts.main['metadata']['name']}",
            what=f"has {len(live)} workers, and needs at least {least}: the others have left or failed",
            fix=f"`run.scale({least})`, or launch it with `min_nodes={len(live)}`",
            certainty=POSSIBLE,
        )


def _of_torchrun(rank: int | str, kind: str, what: str, fix: str) -> Cause:
    who = f"torchrun of {pods.display_name(rank)}"
    return Cause(kind=kind, who=who, what=what, fix=fix, certainty=CERTAIN)


def _call(pod: Object) -> dict[str, str] | None:
    """Read a pod's torchrun options, the command's before the environment's; None for other programs."""
    for container in pod["spec"].get("containers") or []:
        env = {item["name"]: str(item.get("value", "")) for item in container.get("env") or []}
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        text = " ".join(words)
        if not _TORCHRUN.search(text) or "TORCHFT_LIGHTHOUSE" in env:  # a world for each group of replicas
            continue
        options = {name[4:].lower(): value for name, value in env.items() if name.startswith("PET_")}
        for name, value in re.findall(r"--([\w-]{1,60})[= ]([^\s\"']{1,300})", text):
            reference = re.fullmatch(r"\$\((\w{1,100})\)", value)
            options[name.replace("-", "_")] = env.get(reference[1], value) if reference else value
        return options
    return None


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


RULES = (wrong_arguments, below_minimum)
