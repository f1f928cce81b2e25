"""How each rank of a run ended: by its traceback, torchrun's table of failures, and what the node saw. Pure.

Ranks that report nothing (killed, ``os._exit``) are known by exit codes. Clocks of nodes differ, so
times of a pod are shifted by the API server's time of the report of its end minus the kubelet's time of it.
"""

import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from kitlib.causes.facts import Facts
from kitlib.display import tracebacks
from kitlib.display.tables import parse_time, plain
from kitlib.display.tracebacks import Line, Traceback
from kitlib.k8s import pods
from kitlib.k8s.manifests import Object
from kitlib.metrics.events import parse_line

# A broken connection to another rank: a consequence if any other rank ended in another way.
_BROKEN = re.compile(
    r"gloo/transport|Connection (?:was likely )?closed|Connection reset by peer|Broken pipe|recvValue failed"
    r"|sendBytes failed|DistNetworkError|ncclRemoteError|NCCL communicator was aborted|ncclSystemError"
    r"|Watchdog caught collective operation timeout|watchdog thread terminated|heartbeat|SignalException"
    r"|Timed out waiting \d+ms|Socket Timeout|wait timeout after \d+ms|DistStoreError|RendezvousTimeoutError"
    r"|RendezvousConnectionError|timed out after \d+ seconds waiting for clients|failed to connect, willRetry"
    r"|Application timeout caused pair closure|monitoredBarrier|RendezvousClosedError",
    re.IGNORECASE,
)
_DISTRIBUTED = re.compile(r"torch[./]distributed|gloo|nccl|c10d|TCPStore|Dist\w{1,40}Error", re.IGNORECASE)
_OWN = re.compile(
    r"EnforceNotMet.*doesn't match|op\.preamble\.length|mismatch|Address already in use"
    r"|DataLoader worker \(pid",
    re.DOTALL,
)
_FAILED = re.compile(
    r"torch[./]distributed[./]elastic\S{0,200}\] failed \(exitcode: (-?\d+)\) local_rank: (\d+)"
)
_GIVES_UP = re.compile(
    r"Root Cause \(first observed failure\)|torch\.distributed\.\S{1,80}\.ChildFailedError"
)
_FIELD = re.compile(r"\s{1,40}(rank|exitcode|traceback|error_file)\s{0,40}: (.*)")
_SIGTERM_RECEIVED = re.compile(r"Received 15 death signal|SignalException: Process \d{1,9} got signal: 15")
_EXIT_BARRIER = re.compile(r"Error waiting on exit barrier")
_ADDRESS = re.compile(r"(?:peer|error|from|to) \[([\da-fA-F.:]+)\]")  # of the other end, in gloo's errors
_PROCESSES = re.compile(r"--nproc[-_]per[-_]node[ =](\d+)")
_NOISE = re.compile(
    r'\s*(?:\{"|frame #\d|\[[WEI]\d{4} |[WEI]\d{4} |\[notice\]|Exception raised from|<omitting)'
)
_SPAWNED = re.compile(r"process (\d+) terminated with (?:signal (\w+)|exit code (-?\d+))")
LAST_LINES = 20
SKEW_SECONDS = 5.0  # a kubelet reports an end sooner
REPORT_SECONDS = 0.3  # torchrun looks after its processes ten times a second


@dataclass(frozen=True)
class RankEnd:
    """How a rank that failed ended.

    Attributes:
        rank: Its rank, or the replica of a parameter server.
        pod: Its pod in its last known state; None for a run on this machine.
        time: When it ended, RFC 3339, by the API server's clock.
        code: Its exit code; None where it was not observed.
        signal: The signal that ended it, such as ``SIGKILL``.
        error: The exception, which may span several lines, or the last line of the log.
        text: Its traceback, or its last lines.
        oom: Whether the node's kernel killed it for its memory limit.
        survived: Whether the traceback may not have ended the process.
        follows: Whether its end is a consequence of another rank's end.
        launcher: What torchrun reported about it.
    """

    rank: int | str
    pod: Object | None = None
    time: str = ""
    code: int | None = None
    signal: str = ""
    error: str = ""
    text: str = ""
    oom: bool = False
    survived: bool = False
    follows: bool = False
    launcher: str = ""

    @property
    def name(self) -> str:
        return pods.display_name(self.rank)

    @property
    def log(self) -> int | str:
        """The rank for ``run.logs(rank=…)``, whose logs are per pod."""
        return self.rank if self.pod is None else pods.replica_id(self.pod)


@dataclass(frozen=True)
class _Report:
    """A row of torchrun's table of failures."""

    rank: int
    code: int
    time: str
    error: str
    root: bool


def rank_ends(facts: Facts) -> list[RankEnd]:
    """Find the ends of all ranks that failed, in order: the independent ones, then the consequences."""
    ends = [
        replace(end, time=_corrected(end.time, pod))
        for key, pod in _pods_by_rank(facts)
        for lines in (_lines(key, pod, facts),)
        for end in _ends_in([key] if pod is None else _ranks_in(key, pod, lines), pod, _last_attempt(lines))
    ]
    return sorted(
        ends, key=lambda end: (end.follows, end.survived, _is_replaced(end), not end.time, _order(end))
    )


def _is_replaced(end: RankEnd) -> bool:
    """Check whether it is a worker or server whose master replaces it and decides how the run ends."""
    return end.pod is not None and isinstance(pods.replica_id(end.pod), str) and end.rank != "master"


def broken_connection(text: str) -> bool:
    """Check whether an error reports only a broken connection to another rank."""
    return bool(_BROKEN.search(text) and _DISTRIBUTED.search(text)) and not _OWN.search(text)


def suspects(facts: Facts, ends: Sequence[RankEnd]) -> list[RankEnd]:
    """Find the ranks that ended without reporting it: the others lost their connections to one of these.

    Those errors name the address of the peer's pod. A rank of that pod that reports no broken
    connection itself ended earlier: with exit code 0, or by a SIGTERM from torchrun. Without an
    address, ranks without any report precede those that their launcher ended; their pods may be gone.
    """
    if not facts.pods and not any(_ranks_in(key, None, facts.logs[key])[1:] for key in facts.logs):
        return []
    if any(pods.finished(pod) and not pods.has_begun(pod) for pod in facts.pods):
        return []
    blamed = Counter(address for end in ends for address in _ADDRESS.findall(end.error))
    by_rank = {end.rank: end for end in ends}
    silent_ends, present = list[tuple[tuple[int, bool], RankEnd]](), set[int | str]()
    pod_ips = {(pod.get("status") or {}).get("podIP") for pod in facts.pods}
    for key, pod in _pods_by_rank(facts):
        lines, address = _lines(key, pod, facts), ((pod or {}).get("status") or {}).get("podIP")
        present.update(_ranks_in(key, pod, lines))
        for rank in _ranks_in(key, pod, lines):
            end = by_rank.get(rank)
            if end is not None and end.signal != "SIGTERM":
                continue
            last = _last_lines(lines, rank)
            others = [lost.name for lost in ends if address and address in lost.error]
            launcher = f"{', '.join(others)} lost the connection to its pod" if others else ""
            code = 0 if _exited_zero(end, pod, lines) else None
            error, detail = "".join(last[-1:]), "\n".join(last)
            silent = RankEnd(rank, pod, "", code, "", error, detail, launcher=launcher)
            silent_ends.append(((-blamed[address or ""], end is not None), silent))
    ranks_without_pod = [rank for rank in all_ranks(facts) if rank not in present]
    blamed_without_pod = sum(count for address, count in blamed.items() if address not in pod_ips)
    silent_ends += [((-blamed_without_pod, False), RankEnd(rank)) for rank in ranks_without_pod]
    lowest = min((order for order, _ in silent_ends), default=None)
    return [end for order, end in silent_ends if order == lowest]


def _exited_zero(end: RankEnd | None, pod: Object | None, lines: Sequence[Line]) -> bool:
    """Check whether a silent rank ended with exit code 0, as its container or launcher shows."""
    if _EXIT_BARRIER.search("\n".join(line.text for line in lines)):
        return pod is None or pods.finished(pod) or pods.deleted(pod)
    return end is None and (pod is None or bool(_reports(lines)) or _terminated(pod).get("exitCode") == 0)


def _pods_by_rank(facts: Facts) -> list[tuple[int | str, Object | None]]:
    """List the pods by their ranks; of a run on this machine, its log alone."""
    by_rank_of_pod = [(pods.replica_id(pod), pod) for pod in facts.pods]
    return [*by_rank_of_pod] or [(key, None) for key in facts.logs]


def all_ranks(facts: Facts) -> list[int | str]:
    """List all ranks of the run, as its pods and logs show them: also those whose pods were deleted."""
    by_pod = {key: _ranks_in(key, pod, _lines(key, pod, facts)) for key, pod in _pods_by_rank(facts)}
    count = max(map(len, by_pod.values()), default=1)
    absent = [key for key in range(facts.desired) if key not in by_pod] if 0 in by_pod or 1 in by_pod else []
    present = [rank for ranks in by_pod.values() for rank in ranks]
    return present + [key * count + number for key in absent for number in range(count)]


def _ranks_in(key: int | str, pod: Object | None, lines: Sequence[Line]) -> list[int | str]:
    """List the ranks of a pod: by torchrun's command line, unless they wrote others, as elastic ones may."""
    count = _PROCESSES.search(_command(pod))
    events = (parse_line(line.text) for line in lines)
    named = {event.rank for event in events if event} | {
        rank for line in lines if (rank := tracebacks.rank_of(line.text)) is not None
    }
    if count and int(count[1]) > 1 and isinstance(key, int):
        numbered = range(key * int(count[1]), (key + 1) * int(count[1]))
        return [*numbered] if named <= {*numbered} else sorted(named)
    return sorted(named) if len(named) > 1 else [key]


def one_of(ranks: Sequence[int | str]) -> int | str:
    """Name the rank among those that it may be."""
    return ranks[0] if len(ranks) == 1 else f"one of ranks {', '.join(map(str, ranks))}"


def _command(pod: Object | None) -> str:
    containers = ((pod or {}).get("spec") or {}).get("containers") or []
    return " ".join(
        word
        for container in containers
        for word in [*(container.get("command") or []), *(container.get("args") or [])]
    )


def _lines(key: int | str, pod: Object | None, facts: Facts) -> list[Line]:
    """Read a pod's lines without colours; its termination message where that has more."""
    lines = [Line(line.time, plain(line.text)) for line in facts.logs.get(key, ())]
    message = [Line(line.time, plain(line.text)) for line in pods.last_message(pod)] if pod else []
    more = bool(message) and (not lines or bool(tracebacks.find(message) and not tracebacks.find(lines)))
    return message if more else lines


def _last_attempt(lines: Sequence[Line]) -> Sequence[Line]:
    """Drop the lines before torchrun's last restart of the ranks: they survived those errors."""
    ends = [index for index, line in enumerate(lines) if _FAILED.search(line.text)]
    final = ends and any(_GIVES_UP.match(tracebacks.without_prefix(line.text)) for line in lines[ends[-1] :])
    earlier = ends[:-1] if final else ends
    return lines[earlier[-1] + 1 :] if earlier else lines


def _ends_in(ranks: Sequence[int | str], pod: Object | None, lines: Sequence[Line]) -> Iterator[RankEnd]:
    if pod is not None and (unreachable := pods.node_unreachable(pod)):
        since = pods.condition(pod, "Ready").get("lastTransitionTime") or ""
        for rank in ranks:
            yield RankEnd(rank, pod, since, error=unreachable, text="\n".join(_last_lines(lines, rank)))
        return
    state = _terminated(pod)
    is_oom = state.get("reason") == "OOMKilled"
    reports, written = _reports(lines), tracebacks.find(lines)
    # Where torch names no rank, the first error that is no broken connection is that of the process that
    # torchrun saw end first.
    unnamed = sorted(
        (failure for failure in written if failure.rank is None and not failure.survived),
        key=lambda failure: broken_connection(failure.text),
    )
    ranks_reported: set[int | str] = set()
    for report in reports:
        match = next((one for one in written if one.rank == report.rank and not one.survived), None)
        if match is None and report.root:
            match = next((one for one in unnamed if report.code > 0 or not one.is_python), None)
        ranks_reported.add(report.rank)
        yield _reported(report, match, lines, pod, is_oom=is_oom)
    for failure in sorted(written, key=lambda failure: failure.survived):
        rank = one_of(ranks) if failure.rank is None else failure.rank
        if rank not in ranks_reported and not (reports and failure.rank is None):
            ranks_reported.add(rank)
            spawned = _SPAWNED.search(failure.text)
            yield _classified(
                RankEnd(
                    rank,
                    pod,
                    failure.time,
                    state.get("exitCode"),
                    _signal_name(spawned[2]) if spawned and spawned[2] else "",
                    failure.error,
                    failure.text,
                    oom=is_oom and bool(spawned and spawned[2] == "SIGKILL"),
                    survived=failure.survived,
                )
            )
    ends_by_itself = not reports and not any(not failure.survived for failure in written)
    if state.get("exitCode") and (ends_by_itself or (is_oom and not reports)):
        yield _silent(one_of(ranks), pod, state, lines)


def _reported(
    report: _Report, match: Traceback | None, lines: Sequence[Line], pod: Object | None, *, is_oom: bool
) -> RankEnd:
    """Describe the end of a rank that torchrun reports."""
    name = _signal_name(-report.code) if report.code < 0 else ""
    launcher = f"torchrun: rank {report.rank} failed with exit code {report.code}"
    if report.root:
        launcher += ", the first that it saw"
    error, detail, time = report.error, "", _earlier(report.time)
    if match is not None:
        error, detail, time = match.error, match.text, match.time
    else:
        last = _last_lines(lines, report.rank)
        detail, error = "\n".join(last), error or ("" if name else "".join(last[-1:]))
    oom = is_oom and name == "SIGKILL"
    end = RankEnd(report.rank, pod, time, report.code, name, error, detail, oom, launcher=launcher)
    return _classified(end, closing=name == "SIGTERM" and not report.root)


def _silent(rank: int | str, pod: Object | None, state: Object, lines: Sequence[Line]) -> RankEnd:
    """Describe the end of a rank that only the node reports."""
    code = state["exitCode"]
    number = state.get("signal") or (code - 128 if 128 < code < 128 + 65 else 0)
    last = _last_lines(lines, rank)
    name = _signal_name(number) if number else ""
    if not name and (any(_SIGTERM_RECEIVED.search(line.text) for line in lines) or _launcher_left(pod, code)):
        name = "SIGTERM"  # which torchrun makes an exception of its own
    error = "" if name else "".join(last[-1:])
    if state.get("reason") == "ContainerStatusUnknown":  # its node was away
        name, error = "", state.get("message") or "how its container ended is not known"
    time = state.get("finishedAt") or ""
    oom = state.get("reason") == "OOMKilled"
    return _classified(RankEnd(rank, pod, time, code, name, error, "\n".join(last), oom))


def _launcher_left(pod: Object | None, code: int) -> bool:
    """Check whether torchrun ended because its pod was deleted: it reports any other end of its ranks."""
    return code == 1 and pod is not None and pods.deleted(pod) and "torchrun" in _command(pod)


def _classified(end: RankEnd, *, closing: bool = False) -> RankEnd:
    """Check whether an end is a consequence: a broken connection, or a process that its launcher ended."""
    deleted = end.pod is not None and pods.deleted(end.pod)
    # A SIGKILL of the pod kills torchrun as well, so it reports nothing; it ends its ranks by SIGTERM.
    killed = end.signal == "SIGTERM" or (end.signal == "SIGKILL" and not end.launcher)
    leaving = deleted and (killed or not (end.error or end.launcher))
    follows = (
        closing or (leaving and not end.oom) or (not end.oom and broken_connection(end.error + end.text))
    )
    return replace(end, follows=follows)


def _reports(lines: Sequence[Line]) -> list[_Report]:
    """Read torchrun's tables of failures: each row once, the root cause first."""
    rows: dict[int, _Report] = {}
    fields, root, time = dict[str, str](), False, ""
    exits = [(int(match[1]), line.time) for line in lines if (match := _FAILED.search(line.text))]
    for line in [*lines, Line("", "===")]:
        text = tracebacks.without_prefix(line.text)
        if field := _FIELD.match(text):
            fields[field[1]] = field[2].strip()
            time = time or line.time
            continue
        if {"rank", "exitcode"} <= fields.keys():
            rank, code = int(fields["rank"].split()[0]), int(fields["exitcode"].split()[0])
            error = (
                "" if "To enable traceback" in fields.get("traceback", "") else fields.get("traceback", "")
            )
            early = next((at for value, at in exits if value == code), time)
            rows[rank] = _Report(rank, code, early, "" if error.startswith("Signal") else error, root)
        if text.startswith(("Root Cause", "Failures:")):
            root = text.startswith("Root")
        if text.startswith("[") or not text.startswith(" "):
            fields, time = {}, ""
    return sorted(rows.values(), key=lambda report: not report.root)


def _last_lines(lines: Sequence[Line], rank: int | str) -> list[str]:
    """Select the last lines of a rank's log, for people, before torchrun's report on the ends."""
    end = next((i for i, line in enumerate(lines) if tracebacks.LAUNCHER.search(line.text)), len(lines))
    texts = list[str]()
    for line in lines[:end]:
        prefix = tracebacks.rank_of(line.text)
        text = tracebacks.without_prefix(line.text).rstrip()
        if prefix in (None, rank) and text.strip() and not _NOISE.match(text):
            texts.append(text)
    return texts[-LAST_LINES:]


def _terminated(pod: Object | None) -> Object:
    """Find how the pod's container ended; for one that restarts, its last end."""
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or []
    name = pods.main_container(pod) if pod else ""
    # Other containers are handled by kitlib.causes.rules.containers.
    statuses = [status for status in statuses if status.get("name") == name] or statuses
    ended = [
        state
        for status in statuses
        for place in ("state", "lastState")
        if (state := (status.get(place) or {}).get("terminated"))
        and (place == "state" or "waiting" in (status.get("state") or {}))
    ]
    return next((state for state in ended if state.get("exitCode")), ended[0] if ended else {})


def _signal_name(number: int | str) -> str:
    if isinstance(number, str):
        return number
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _earlier(time: str) -> str:
    """Shift a time of torchrun's report back to the process's end."""
    return _shifted(time, -timedelta(seconds=REPORT_SECONDS))


def _shifted(time: str, by: timedelta) -> str:
    moment = _moment(time)
    return time if moment is None else (moment + by).astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment(time: str) -> datetime | None:
    """Parse a time of a log; None for an empty or an invalid one."""
    try:
        return parse_time(time or None)
    except ValueError:
        return None


def _order(end: RankEnd) -> float:
    moment = _moment(end.time)
    return moment.timestamp() if moment else 0.0


def _corrected(time: str, pod: Object | None) -> str:
    """Shift a time by how far the clock of the pod's node is behind the API server's."""
    finished = _moment(_terminated(pod).get("finishedAt") or "")
    managed = ((pod or {}).get("metadata") or {}).get("managedFields") or []
    reported = [
        moment
        for entry in managed
        if entry.get("subresource") == "status" and (moment := _moment(entry.get("time") or ""))
    ]
    if finished is None or not reported:
        return time
    behind = max(reported) - finished
    return time if abs(behind.total_seconds()) <= SKEW_SECONDS else _shifted(time, behind)


def own_ends(ends: Iterable[RankEnd]) -> list[RankEnd]:
    """Select the ends that are not consequences, the earliest first."""
    return [end for end in ends if not end.follows]
