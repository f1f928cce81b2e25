"""Timeouts of a collective, or of ``init_process_group``, in which ranks waited for others. Pure.

Their errors are consequences: the cause is the rank that did not join. Some name it, by the key that torch's
store lacks; otherwise it is the rank that reports no timeout itself.
"""

import re
from collections.abc import Iterator, Sequence

from kitlib.causes.cause import LIKELY, Cause
from kitlib.causes.rank_ends import RankEnd
from kitlib.causes.rules.hangs import names
from kitlib.k8s import pods

_STORE = re.compile(
    r"wait timeout after (?P<ms>\d{1,12})ms, keys: /?default_pg/\d{1,9}//\w{1,20}//\d{1,9}/(?P<ranks>\d{1,9})"
)
_BARRIER = re.compile(
    r"Ranks? (?P<ranks>\d[\d, ]{0,400}) failed to pass monitoredBarrier in (?P<ms>\d{1,12}) ms"
)
_COLLECTIVE = re.compile(
    r"Timed out waiting (?P<ms>\d{1,12})ms for (?:recv|send)|"
    r"Watchdog caught collective operation timeout: [^\n]{0,400}Timeout\(ms\)=(?P<ms2>\d{1,12})"
)
_LOOK = "`run.why()` while it hangs names what it does; a collective in `if rank == 0:` is the usual reason"


def absent(ends: Sequence[RankEnd], ranks: Sequence[int | str]) -> Iterator[Cause]:
    """Name the ranks for which others waited until a timeout, where all ends are consequences.

    Args:
        ends: The ends of the ranks that failed.
        ranks: All ranks of the run.
    """
    timeouts = {end.rank: match for end in ends if (match := _timeout(f"{end.error}\n{end.text}"))}
    if not timeouts:
        return
    first = min(timeouts, key=lambda rank: timeouts[rank].re is _COLLECTIVE)  # which names no rank
    match = timeouts[first]
    groups = match.groupdict()
    seconds = f"{int(groups.get('ms2') or groups['ms']) / 1000:g} s"
    missing: list[int | str] = [int(number) for number in re.findall(r"\d+", groups.get("ranks") or "")]
    missing = missing or [rank for rank in ranks if rank not in timeouts]
    if not missing:
        return
    waited = (
        f"{names(sorted(timeouts, key=str))} waited {seconds} for {'it' if len(missing) == 1 else 'them'}"
    )
    last = next((end.text.splitlines()[-1] for end in ends if end.rank in missing and end.text), "")
    kind, place, fix = "Timeout", "a collective", _LOOK
    if match.re is _STORE:
        kind, place, fix = ("NotJoined", "init_process_group", "`run.logs()` of it shows what it did")
    if missing[0] not in ranks:
        kind, fix = "WorldSize", f"world_size={len(ranks)}; init_process_group() without arguments reads it"
        waited += f"; the run has {len(ranks)} ranks"
    elif last:
        waited += f"; its last line: {last}"
    yield Cause(
        kind=kind,
        who=names(missing),
        what=f"did not come to {place}: {waited}",
        fix=fix,
        evidence=(f"{pods.display_name(first)}: {match[0]}",),
        certainty=LIKELY,
        rank=missing[0] if len(missing) == 1 else None,
        detail=next((end.text for end in ends if end.rank == first), ""),
    )


def _timeout(text: str) -> re.Match[str] | None:
    return _STORE.search(text) or _BARRIER.search(text) or _COLLECTIVE.search(text)
