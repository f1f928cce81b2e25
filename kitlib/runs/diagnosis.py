"""The diagnosis of a run: the facts about it, collected, and the causes that the rules find in them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from kitlib.causes import Diagnosis, causes
from kitlib.causes.collect import collect
from kitlib.causes.processes import COMMAND, RankState, read_states
from kitlib.display.tables import parse_time
from kitlib.display.tracebacks import Line, time_key
from kitlib.errors import KitError, RunFailed
from kitlib.k8s import pods
from kitlib.k8s.client import Kube
from kitlib.k8s.manifests import Object
from kitlib.metrics.events import parse_line
from kitlib.runs.status import FAILED, RUNNING, RunObjects, RunStatus, find_main

HANG_SECONDS = 60.0
LOOKS = 8  # pods that are inspected at the same time
FIX = "fix it and launch again; `run.logs(rank=…)` has a rank's whole output"


def diagnose(
    objects: RunObjects,
    status: RunStatus,
    logs: Mapping[int | str, Sequence[Line]],
    *,
    rank: int | str | None = None,
    hang_after: float = HANG_SECONDS,
    look: bool = True,
) -> Diagnosis:
    """Collect the facts about a run, and find the causes in them.

    Args:
        objects: The run's objects.
        status: Its status.
        logs: The lines of its ranks.
        rank: Only the pod of this rank.
        hang_after: Seconds without a step, or without a line, after which a run counts as hanging.
        look: Inspect the processes of ranks also before that: one may be slow.
    """
    newest = objects.newest(objects.pods(), started=status.phase == FAILED)
    idle_seconds, missing = seconds_without_a_step(newest, logs), dict[str, str]()
    running = status.phase == RUNNING and status.running >= status.desired and rank is None
    processes = list[RankState]()
    if running and (look or idle_seconds >= hang_after):
        with ThreadPoolExecutor(LOOKS) as pool:
            looks = pool.map(lambda pod: _look(objects.kube, pod, missing), newest)
            processes = [state for states in looks for state in states]
    idle_seconds = max(idle_seconds, oldest_call(processes))
    facts = collect(
        objects.kube,
        run=objects.name,
        main=find_main(objects.kube, objects.name),
        pods_of_run=[pod for pod in newest if rank in (None, pods.replica_id(pod))],
        logs=logs,
        phase=status.phase,
        processes=processes,
        hang_seconds=idle_seconds if idle_seconds >= hang_after else 0.0,
    )
    unread = unread_of({**facts.missing, **missing}, processes)
    return Diagnosis(objects.about, str(status), tuple(causes(facts)), unread, tuple(processes))


def unread_of(missing: Mapping[str, str], processes: Sequence[RankState]) -> tuple[str, ...]:
    """List unread facts, each with the reason: kinds of the API, processes, collectives of ranks."""
    collectives = {
        f"collectives of {pods.display_name(state.rank)}": state.missing
        for state in processes
        if state.missing
    }
    return tuple(f"{name}: {reason}" for name, reason in sorted({**missing, **collectives}.items()))


def oldest_call(processes: Sequence[RankState]) -> float:
    """Count the seconds for which a rank has waited in a collective."""
    waits = (state.time - state.pending.time for state in processes if state.pending)
    return max(waits, default=0.0)


def seconds_without_a_step(newest: Sequence[Object], logs: Mapping[int | str, Sequence[Line]]) -> float:
    """Count the seconds since a rank did its last step, or else wrote a line, or its container started."""
    steps = [next(filter(_is_step, reversed(lines)), None) for lines in logs.values()]
    ends = [line for line in steps if line] or [line for lines in logs.values() for line in lines[-1:]]
    times = [line.time for line in ends] + list(map(pods.started_at, newest))
    last = max((time for time in times if time), key=time_key, default="")
    moment = parse_time(last or None)
    return 0.0 if moment is None else (datetime.now(UTC) - moment).total_seconds()


def _is_step(line: Line) -> bool:
    event = parse_line(line.text) if '"step"' in line.text else None
    return event is not None and event.event == "step"


def _look(kube: Kube, pod: Object, missing: dict[str, str]) -> list[RankState]:
    """Inspect the processes of a pod's ranks; record in ``missing`` why that was not possible."""
    name = pod["metadata"]["name"]
    try:
        output = kube.execute(name, COMMAND, container=pod["spec"]["containers"][0]["name"])
        return list(read_states(output, pods.replica_id(pod)))
    except (KitError, ValueError) as error:  # the second: what is no JSON
        missing[f"processes of pod {name}"] = str(error)
        return []


def run_failed(diagnosis: Diagnosis, *, reason: str = "") -> RunFailed:
    """Build the error of a failed run from its first cause; without one, from the reason of its status."""
    cause = diagnosis.first
    if cause is None:
        return RunFailed(reason or "the run failed", about=diagnosis.about, fix=FIX)
    return RunFailed(
        cause.line, about=diagnosis.about, fix=cause.fix or FIX, detail=cause.detail, rank=cause.rank
    )
