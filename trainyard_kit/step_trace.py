"""Break down the steps of a training run by comparing the ``torch.profiler`` traces of all ranks.

A rank's step consists of computing (including waits for a core), reading data, exposed communication, waiting
for a later rank, and the rest, such as Python. Communication during computation is hidden and costs no time.
The clocks of ranks differ, but a collective operation ends on all ranks at about the same time, so the ends
align the clocks. The others wait for the last rank that enters a collective.

The traces are in Chrome's format, as `trainers/step_recorder.py` writes them. GPU kernels count as computing
and NCCL's kernels as communication; without a GPU, PyTorch's operators and gloo's collectives do.
https://docs.pytorch.org/docs/stable/profiler.html
"""

import gzip
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kitlib.errors import BadInput

if TYPE_CHECKING:
    import pandas

    from kitlib.widgets.plots import Picture

Spans = list[tuple[float, float]]  # begin and end in microseconds
PARTS = ("computing", "data", "communication", "waiting", "other")
KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
SLOW_SHARE = 0.1  # of the time of all ranks; smaller shares occur on a busy machine
MIN_BLAME = 0.8  # of all waiting time; if ranks share cores, one may cause two thirds of it by chance


@dataclass(frozen=True)
class Trace:
    """The trace of one rank.

    Attributes:
        rank: The rank.
        steps: The spans of the steps.
        computing: The spans of computation.
        data: The spans of reading data.
        collectives: The spans from the rank's entry into each collective operation to its end.
    """

    rank: int
    steps: Spans
    computing: Spans
    data: Spans
    collectives: Spans

    def shifted(self, by: float) -> "Trace":
        """Shift all times by some microseconds."""
        spans = (self.steps, self.computing, self.data, self.collectives)
        return Trace(self.rank, *([(begin + by, end + by) for begin, end in part] for part in spans))


def merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """Merge spans that overlap or touch, and sort them."""
    spans_merged: Spans = []
    for begin, end in sorted(spans):
        if spans_merged and begin <= spans_merged[-1][1]:
            spans_merged[-1] = (spans_merged[-1][0], max(end, spans_merged[-1][1]))
        elif end > begin:
            spans_merged.append((begin, end))
    return spans_merged


def overlap(first: Iterable[tuple[float, float]], second: Iterable[tuple[float, float]]) -> Spans:
    """Intersect spans: (0, 5) with (1, 2), (4, 9) gives (1, 2), (4, 5)."""
    ours, theirs, spans = merged(first), merged(second), []
    while ours and theirs:
        begin, end = max(ours[0][0], theirs[0][0]), min(ours[0][1], theirs[0][1])
        if begin < end:
            spans.append((begin, end))
        (ours if ours[0][1] <= theirs[0][1] else theirs).pop(0)
    return spans


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Compute the total length of spans that do not overlap."""
    return sum(end - begin for begin, end in spans)


def parse(content: Mapping[str, Any]) -> Trace:
    """Read the trace of a rank from the profiler's JSON."""
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    named = [event for event in events if event["name"].startswith("ProfilerStep#")]
    steps = [event for event in named if event["cat"] == "user_annotation"]  # not a GPU's copy of it
    kernels = [event for event in events if event.get("cat") in KERNELS]
    if kernels:
        collectives = [event for event in kernels if event["name"].startswith("nccl")]
        computing = [event for event in kernels if not event["name"].startswith("nccl")]
    else:
        collectives = [event for event in events if event["name"].startswith("gloo:")]
        network = {event["tid"] for event in collectives}  # copies in these threads are communication
        operators = [event for event in events if event["cat"] == "cpu_op" and event["tid"] not in network]
        computing = [event for event in operators if event["name"].startswith("aten::")]
    data = [event for event in events if event["name"] == "data" and event["cat"] == "user_annotation"]
    parts = (sorted(map(_span, part)) for part in (steps, computing, data, collectives))
    return Trace(content.get("distributedInfo", {}).get("rank", 0), *parts)


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


class StepTrace:
    """The traces of all ranks of a run, for the same steps."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        traces = sorted(traces, key=lambda trace: trace.rank)
        counts = {(len(trace.steps), len(trace.collectives)) for trace in traces}
        if len(counts) != 1 or (0, 0) in counts:
            about = f"{len(traces)} traces, of (steps, collectives) {sorted(counts)}"
            raise BadInput(
                "the traces are not from the same run", about=about, fix="write the traces to an empty folder"
            )
        self.traces = [trace.shifted(_clock(traces[0], trace)) for trace in traces]
        arrivals = zip(*([begin for begin, _ in trace.collectives] for trace in self.traces), strict=True)
        self._last = [max((begin, rank) for rank, begin in enumerate(begins)) for begins in arrivals]

    def _exposed(self, trace: Trace) -> Spans:
        """Return the spans of a step in which a rank only communicates."""
        network = overlap(trace.collectives, trace.steps)
        return _without(network, merged([*trace.computing, *trace.data]))

    def _waits(self, trace: Trace, rank: int) -> Spans:
        """Return when a rank only waits for another, in collectives that the other enters last."""
        pairs = zip(trace.collectives, self._last, strict=True)
        early = [(begin, last) for (begin, _), (last, late) in pairs if late == rank and begin < last]
        return overlap(self._exposed(trace), early)

    @cached_property
    def seconds(self) -> "pandas.DataFrame":
        """Seconds of a step by rank: its parts, and ``hidden``, communication during computation."""
        import pandas

        return pandas.DataFrame([self._row(trace) for trace in self.traces]).set_index("rank")

    def _row(self, trace: Trace) -> dict[str, float]:
        steps, exposed = merged(trace.steps), self._exposed(trace)
        data = overlap(trace.data, steps)
        computing = _without(overlap(trace.computing, steps), data)
        waits = merged(span for rank in range(len(self.traces)) for span in self._waits(trace, rank))
        parts = {"computing": length(computing), "data": length(data)}
        parts |= {"communication": length(exposed) - length(waits), "waiting": length(waits)}
        parts["other"] = length(steps) - sum(parts.values())
        parts["hidden"] = length(overlap(trace.collectives, steps)) - length(exposed)
        return {"rank": trace.rank} | {name: us / 1e6 / len(trace.steps) for name, us in parts.items()}

    @property
    def exchange(self) -> float:
        """Seconds of a step in collectives, hidden or exposed, each from the entry of its last rank on."""
        collectives = zip(*(trace.collectives for trace in self.traces), strict=True)
        shortest = (min(end - begin for begin, end in ranks) for ranks in collectives)
        return sum(shortest) / 1e6 / len(self.traces[0].steps)

    @cached_property
    def blame(self) -> dict[int, float]:
        """Seconds of a step that all other ranks together wait for each rank."""
        return {
            late.rank: sum(length(self._waits(trace, rank)) for trace in self.traces) / 1e6 / len(late.steps)
            for rank, late in enumerate(self.traces)
        }

    @property
    def slow_rank(self) -> int | None:
        """The single rank for which the others wait; None if there is none."""
        rank, seconds = max(self.blame.items(), key=lambda item: item[1])
        total = float(self.seconds[list(PARTS)].to_numpy().sum())
        most = seconds >= MIN_BLAME * sum(self.blame.values())
        return rank if most and seconds >= SLOW_SHARE * total else None

    def plot(self) -> "Picture":
        """Plot the parts of a step by rank."""
        from trainyard_kit.step_trace_plot import plot_step_trace

        return plot_step_trace(self.seconds, slow_rank=self.slow_rank)


def _without(spans: Spans, cover: Spans) -> Spans:
    """Subtract the second spans from the first."""
    edges = [(-1e18, -1e18), *merged(cover), (1e18, 1e18)]
    gaps = [(before[1], after[0]) for before, after in zip(edges, edges[1:], strict=False)]
    return overlap(spans, gaps)


def _clock(first: Trace, second: Trace) -> float:
    """Return the offset of a trace's clock: the median difference of the ends of collectives."""
    pairs = zip(first.collectives, second.collectives, strict=True)
    return statistics.median(ours[1] - theirs[1] for ours, theirs in pairs) if second.collectives else 0.0


def read_traces(folder: str | Path) -> StepTrace:
    """Read the traces of all ranks: the files ``rank-N.json`` or ``rank-N.json.gz`` of a folder."""
    paths = sorted(Path(folder).glob("rank-*.json*"))
    if not paths:
        fix = "pass --trace-dir to trainers/gpt.py, and train for at least six steps"
        raise BadInput("the folder contains no traces", about=str(folder), fix=fix)
    return StepTrace([parse(json.loads(_text(path))) for path in paths])


def _text(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
