"""The rank that failed first and why, from its log, torchrun's report and the node's status.

A broken connection is a consequence if any other rank ended in another way. How each rank ended is in
`kitlib.causes.rank_ends`; what errors mean in `kitlib.causes.known_errors`.
"""

from collections.abc import Iterator
from dataclasses import replace

from kitlib.causes.cause import CERTAIN, CONSEQUENCE, LIKELY, POSSIBLE, Cause, shorten
from kitlib.causes.facts import Facts
from kitlib.causes.known_errors import by_code, known
from kitlib.causes.rank_ends import RankEnd, all_ranks, one_of, own_ends, rank_ends, suspects
from kitlib.causes.rules.timeouts import absent
from kitlib.causes.signals import ended_by_node
from kitlib.k8s import pods
from kitlib.k8s.events import event_time
from kitlib.k8s.manifests import Object

OUTPUT = "`run.logs(rank={})` has the rank's whole output"
FIX = f"fix it and launch again; {OUTPUT}"
SHORT = 120  # characters of a consequence
SIGNALS = {
    "SIGKILL": ("was killed (SIGKILL)", "`run.events()` may say by whom; launch again"),
    "SIGSEGV": ("crashed (SIGSEGV)", "PYTHONFAULTHANDLER=1 in its environment shows the line; launch again"),
    "SIGABRT": ("aborted (SIGABRT)", "the last lines before it name the library; launch again"),
    "SIGBUS": (
        "crashed (SIGBUS): /dev/shm or a mapped file is full",
        "more `memory=`, fewer data loader workers",
    ),
    "SIGFPE": ("crashed (SIGFPE)", "PYTHONFAULTHANDLER=1 in its environment shows the line"),
    "SIGILL": ("crashed (SIGILL): its image is for another processor", "an image for the node's processor"),
    "SIGTERM": ("was told to end (SIGTERM)", "`run.events()` may say by whom; launch again"),
    "SIGINT": ("was interrupted (SIGINT)", "launch again"),
    "SIGXCPU": ("used more processor time than its limit (SIGXCPU)", "a higher ulimit -t"),
}


def failed_ranks(facts: Facts) -> Iterator[Cause]:
    """Name the rank that failed first, those that failed by themselves after it, and the consequences."""
    if facts.phase == "Succeeded":
        return
    ends = [end for end in rank_ends(facts) if not ended_by_node(end.pod)]
    own = own_ends(ends)
    if own:
        first, ending = own[0], (own[0].error, own[0].signal)
        alike = [end for end in own if any(ending) and (end.error, end.signal) == ending]
        if 1 < facts.desired <= len(alike):  # all fail alike: clocks say nothing
            first = min(alike, key=lambda end: (isinstance(end.rank, str), end.rank))
        yield _cause(first, facts, [end.name for end in alike if end is not first], first=True)
        for end in own:
            if end is not first and end not in alike:  # the first says so
                yield _cause(end, facts, [], first=False)
    silent = []
    if ends and not own:
        silent = [*absent(ends, all_ranks(facts))] or [*_silent_ranks(facts, ends)]
    yield from silent
    for end in ends:
        if end.follows:
            yield _consequence(end, alone=not own and not silent and end is ends[0])


RULES = (failed_ranks,)


def _cause(end: RankEnd, facts: Facts, same: list[str], *, first: bool) -> Cause:
    kind, what, fix, evidence = _ending(end)
    if same:
        evidence.append(f"{', '.join(same)} failed with the same error")
    evidence += [f"Event {event['reason']}: {event.get('message', '')}" for event in _disruptions(end, facts)]
    if end.signal == "SIGKILL" and not end.oom:
        evidence += _pressure(facts, end.pod)
    is_explained = end.oom or bool(end.signal) or bool(end.error)
    if end.survived:
        kind, what = (
            "Survived",
            f"went on after an exception in a thread, or one that it logged: {shorten(end.error)}",
        )
    elif not first:
        what = what.replace("failed first", "failed as well", 1)
    return Cause(
        kind=kind,
        who=end.name,
        what=what,
        fix=fix,
        evidence=tuple(evidence),
        ruled_out=_ruled_out(end),
        certainty=POSSIBLE if end.survived or not first else CERTAIN if is_explained else LIKELY,
        time=end.time,
        rank=end.rank,
        detail=end.text,
    )


def _ending(end: RankEnd) -> tuple[str, str, str, list[str]]:
    """Describe an end: its kind, what happened, what to do, and the evidence."""
    evidence = [_node_saw(end)] if end.pod is not None and end.code is not None else []
    if end.launcher:
        evidence.append(end.launcher)
    if end.oom:
        limit = _memory_limit(end.pod)
        fix = f"`memory=…` more than {limit}" if limit else "give it more, `memory=…`"
        return (
            "OOMKilled",
            "was OOMKilled: it needs more than its memory limit" + (f" of {limit}" if limit else ""),
            f"{fix}, or use less: smaller batches, fewer data loader workers",
            evidence,
        )
    if end.pod is not None and pods.node_unreachable(end.pod):
        fix = "`cluster.nodes()` shows it; launch again, on the remaining nodes"
        return "NodeLost", f"is lost: {end.error}", fix, evidence
    meaning = by_code(end.code or 0) or known(end.error) or known(end.text, lasting=True)
    if meaning is not None:
        evidence.insert(0, meaning.means)
    if end.signal:
        what, fix = SIGNALS.get(end.signal, (f"was ended by {end.signal}", "launch again"))
        if meaning is None:
            evidence += [f"its last line: {line}" for line in (end.error or end.text).splitlines()[-1:]]
            return "Signal", f"failed first: it {what}", fix, evidence
        what = f"failed first: it {what}" + (f": {end.error.splitlines()[0]}" if end.error else "")
        return meaning.kind, what, meaning.fix, evidence
    fix = FIX.format(repr(end.log))
    if meaning is not None:
        again = "" if "launch" in meaning.fix else "; then launch again"
        fix = f"{meaning.fix}{again}. {OUTPUT.format(repr(end.log))}"
    is_last_line = end.text.splitlines()[-1:] == [end.error] and "Traceback" not in end.text
    if end.error and not (end.code is not None and is_last_line):
        return (
            (meaning.kind if meaning else "Exception"),
            f"failed first: {shorten(end.error)}",
            fix,
            evidence,
        )
    last = f"; its last line: {shorten(end.error)}" if end.error else ", without any output"
    return (
        (meaning.kind if meaning else "ExitCode"),
        f"failed first: exit code {end.code}{last}",
        fix,
        evidence,
    )


def _node_saw(end: RankEnd) -> str:
    pod = end.pod or {}
    place = f" on {pod['spec']['nodeName']}" if pod.get("spec", {}).get("nodeName") else ""
    word = "OOMKilled" if end.oom else end.signal
    return f"pod {pod['metadata']['name']}{place}: exit code {end.code}" + (f", {word}" if word else "")


def _ruled_out(end: RankEnd) -> tuple[str, ...]:
    if end.signal == "SIGKILL" and not end.oom and end.pod is not None:
        return ("its memory limit: the node does not report OOMKilled",)
    return ()


def _memory_limit(pod: Object | None) -> str:
    containers = ((pod or {}).get("spec") or {}).get("containers") or []
    limits = [
        ((container.get("resources") or {}).get("limits") or {}).get("memory") for container in containers
    ]
    return next(filter(None, limits), "")


def _disruptions(end: RankEnd, facts: Facts) -> list[Object]:
    """List the Events of the pod's disruptions: kills by the kit, evictions, preemptions, probes."""
    acts = {"Killed", "Evicted", "Preempted", "Preempting", "TaintManagerEviction", "Unhealthy", "OOMKilling"}
    events = facts.events_of(end.pod) if end.pod else []
    about = (event for event in events if event.get("reason") in acts)
    return sorted(about, key=event_time)[-2:]


def _pressure(facts: Facts, pod: Object | None) -> list[str]:
    """List the pressure conditions of a killed pod's node."""
    node = facts.find("Node", ((pod or {}).get("spec") or {}).get("nodeName") or "")
    bad = [kind for kind in pods.conditions(node or {}) if kind != "Ready"]
    return [f"node {node['metadata']['name']} has {', '.join(bad)}"] if node and bad else []


def _silent_ranks(facts: Facts, ends: list[RankEnd]) -> Iterator[Cause]:
    """Name the ranks that ended without any output while the others lost their connections."""
    silent = suspects(facts, ends)
    if len({(end.error, end.code) for end in silent}) == 1 < len(silent) and silent[0].code is None:
        silent = [replace(silent[0], rank=one_of([end.rank for end in silent]))]  # which one is unknown
    for end in silent:
        last = f"; its last line: {end.error}" if end.error else ""
        what, fix = f"ended first{last}", FIX.format(repr(end.log))
        if end.code == 0:
            what = f"ended first, with exit code 0, while others still trained{last}"
            fix = (
                "have all ranks do as many steps: drop_last=True, or DDP's join(); no sys.exit(0) in one rank"
            )
        yield Cause(
            kind="EndedEarly",
            who=end.name,
            what=what,
            fix=fix,
            evidence=tuple(filter(None, [end.launcher])),
            certainty=LIKELY if end.launcher else POSSIBLE,
            rank=end.rank,
            detail=end.text,
        )


def _consequence(end: RankEnd, *, alone: bool) -> Cause:
    """Describe an end that is a consequence; in full if nothing else is known."""
    meaning = known(f"{end.error}\n{end.text}")
    error = end.error or f"exit code {end.code}"
    what = f"failed first: {error}" if alone else f"failed as well: {error.splitlines()[0][:SHORT]}"
    if not alone and (meaning is None or end.signal):
        what = "was told to end" if end.signal else "lost its connection to another rank"
    return Cause(
        kind=meaning.kind if meaning else "LostConnection",
        who=end.name,
        what=what,
        fix=meaning.fix
        if meaning
        else "`run.logs()` of the other ranks, and `run.events()`, may say why they ended",
        evidence=(meaning.means if meaning else "it lost its connection to another rank",),
        certainty=CONSEQUENCE,
        time=end.time,
        rank=end.rank,
        detail=end.text,
    )
