"""Why a run failed, in an error that begins with the rank that failed first. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from kitlib.display import tracebacks
from kitlib.display.tracebacks import Line
from kitlib.errors import RunFailed
from kitlib.k8s import pods as pod_facts
from kitlib.k8s.job_status import RunStatus
from kitlib.k8s.manifests import Object

LAST_LINES = 20
_TORCHRUN = re.compile(r"torch/distributed/elastic/\S+\] failed \(exitcode")
FIX = "mend it and launch again; run.logs(rank=…) has all that a rank wrote"


def explain(
    status: RunStatus, pods: Iterable[Object], written: Mapping[int | str, Sequence[Line]], *, about: str
) -> RunFailed:
    """Return the error: the first traceback, or else what is known of the first pod that failed.

    Args:
        status: The run's.
        pods: The newest of each rank, as they ended; also those that are gone.
        written: What each rank wrote.
        about: The run, for the error.
    """
    pods = list(pods)
    left = {pod_facts.replica_id(each): pod_facts.last_message(each) for each in pods}
    written = dict(written) | {
        seat: lines for seat, lines in left.items() if _says_more(lines, written.get(seat))
    }
    found = tracebacks.first(written)
    if found is not None:
        what = f"{pod_facts.display_name(found.rank)} failed first: {found.error}"
        return RunFailed(what, about=about, fix=FIX, detail=found.text, rank=found.rank)
    failed, unheard = pod_facts.failed(pods), [each for each in pods if pod_facts.node_unreachable(each)]
    # A Job that gives up deletes the pods of the other ranks, which then fail as well.
    lost = [each for each in failed if not pod_facts.deleted(each)] or unheard or failed
    rank = pod_facts.replica_id(lost[0]) if lost else None
    last = "\n".join(_own_words(written.get(rank, []))[-LAST_LINES:])
    what = status.reason or "the Job failed"
    if lost and not what.startswith(pod_facts.display_name(rank)):  # it was gone when the run was judged
        what = f"{pod_facts.display_name(rank)}: {pod_facts.why(lost[0])}; {what}"
    return RunFailed(what, about=about, fix=FIX, rank=rank, detail=last)


def _says_more(message: Sequence[Line], log: Sequence[Line] | None) -> bool:
    """Return whether the last words in a pod's status say more than its log, of which the end may be lost."""
    return bool(message) and (not log or bool(tracebacks.find(message) and not tracebacks.find(log)))


def _own_words(lines: Iterable[Line]) -> list[str]:
    """Return what the trainer wrote before torchrun began to report that it had ended."""
    texts = [line.text for line in lines]
    report = next((index for index, text in enumerate(texts) if _TORCHRUN.search(text)), len(texts))
    return texts[: max(report, 1)]
