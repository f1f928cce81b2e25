"""Causes in a pod's other containers: one that failed, or one that outlives its rank.

The rank is in the pod's first container; how that ended is in ``ranks``.
"""

from collections.abc import Iterator

from kitlib.causes.cause import CERTAIN, LIKELY, Cause
from kitlib.causes.facts import Facts
from kitlib.causes.known_errors import missing_program
from kitlib.k8s import pods
from kitlib.k8s.manifests import Object

PATIENCE_SECONDS = 10


def others(facts: Facts) -> Iterator[Cause]:
    """Find containers beside the rank's that failed, or that still run after it."""
    if facts.phase == "Succeeded":
        return
    for pod in facts.pods:
        rank = pods.main_container(pod)
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        states = {item.get("name", rank): item.get("state") or {} for item in statuses}
        if pods.deleted(pod) or rank not in states:
            continue
        own = states.pop(rank)
        for name, state in states.items():
            ended = state.get("terminated") or {}
            if ended.get("exitCode"):
                yield _failed(pod, name, rank, ended, own)
            elif state.get("running") and _ended_long_ago(facts, own):
                yield _outlives_rank(pod, name, rank)


def _ended_long_ago(facts: Facts, own: Object) -> bool:
    """Check whether a rank ended so long ago that the containers beside it will not end by themselves."""
    ended = own.get("terminated") or {}
    return ended.get("exitCode") == 0 and facts.seconds_since(ended.get("finishedAt")) > PATIENCE_SECONDS


def _failed(pod: Object, name: str, rank: str, ended: Object, own: Object) -> Cause:
    reason, code = ended.get("reason") or "Error", ended["exitCode"]
    does = "still runs" if own.get("running") else "has ended with exit code 0"
    is_alone = bool(own.get("running")) or (own.get("terminated") or {}).get("exitCode") == 0
    what = f"has a container {name} beside it that failed: {reason}, exit code {code}"
    return Cause(
        kind="Sidecar",
        who=pods.display_name(pods.replica_id(pod)),
        what=what + (f"; its own, {rank}, {does}" if is_alone else ""),
        fix=f"kubectl logs {pod['metadata']['name']} -c {name} -n {pod['metadata'].get('namespace', '')}",
        evidence=(f"pod {pod['metadata']['name']}, container {name}: {reason}, exit code {code}",),
        certainty=CERTAIN if is_alone else LIKELY,
        time=ended.get("finishedAt") or "",
        rank=pods.replica_id(pod),
    )


def _outlives_rank(pod: Object, name: str, rank: str) -> Cause:
    return Cause(
        kind="SidecarStays",
        who=pods.display_name(pods.replica_id(pod)),
        what=f"has ended with exit code 0, and its container {name} still runs: so its pod does not end",
        fix=f"make {name} an init container with restartPolicy: Always, which ends with container {rank}",
        certainty=CERTAIN,
        rank=pods.replica_id(pod),
    )


def crash_loops(facts: Facts) -> Iterator[Cause]:
    """Find a container that calls, in a loop, a program that its image does not have."""
    for pod in facts.pods if facts.phase in ("Pending", "Running") else ():
        lines = [line.text for line in facts.lines_of(pod)[-6:]]
        program, line = missing_program(lines)
        if program and sum(line == text.strip() for text in lines) > 1:
            yield Cause(
                kind="MissingProgram",
                who=pods.display_name(pods.replica_id(pod)),
                what=f"does not find its program {program}, and calls it in a loop",
                fix=f"an image that has {program}, or a command that its image has",
                evidence=(line,),
                certainty=LIKELY,
                rank=pods.replica_id(pod),
            )


RULES = (others, crash_loops)
