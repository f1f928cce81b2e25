"""Where the steps of a training run go: what each rank's trace of ``torch.profiler`` says, side by side.

A rank's step is divided into computing (with waiting for a core), reading data, communication that nothing
hides, waiting for a rank that came later, and the rest, such as Python. Communication during which the rank
computes is hidden and costs nothing. Ranks' clocks differ, but a collective operation ends on all at about
the same time: by its ends the traces are put on one clock. The last rank to arrive is the one for which the
others waited.

It reads Chrome's format; `trainers/step_recorder.py` writes it. Computing is what kernels of a GPU do, and
communication those of NCCL; without a GPU, PyTorch's operators and gloo's collectives.
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
SLOW_SHARE = 0.1  # of the time of all ranks: less is what a busy machine does
MIN_BLAME = 0.8  # of all waiting: where ranks share cores, one may cause two thirds of it by chance


@dataclass(frozen=True)
class Trace:
    """What one rank did in the steps that were traced.

    Attributes:
        rank: Its number.
        steps: From the begin to the end of each step.
        computing: When it computed.
        data: When it read data.
        collectives: From its own arrival at each collective operation to the end of it.
    """

    rank: int
    steps: Spans
    computing: Spans
    data: Spans
    collectives: Spans

    def shifted(self, by: float) -> "Trace":
        """Put it on another clock."""
        spans = (self.steps, self.computing, self.data, self.collectives)
        return Trace(self.rank, *([(begin + by, end + by) for begin, end in part] for part in spans))


def merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """Join spans that overlap or touch, in order."""
    spans_merged: Spans = []
    for begin, end in sorted(spans):
        if spans_merged and begin <= spans_merged[-1][1]:
            spans_merged[-1] = (spans_merged[-1][0], max(end, spans_merged[-1][1]))
        elif end > begin:
            spans_merged.append((begin, end))
    return spans_merged


def overlap(first: Iterable[tuple[float, float]], second: Iterable[tuple[float, float]]) -> Spans:
    """Return what is in both: of (0, 5) and (1, 2), (4, 9) it is (1, 2), (4, 5)."""
    ours, theirs, spans = merged(first), merged(second), []
    while ours and theirs:
        begin, end = max(ours[0][0], theirs[0][0]), min(ours[0][1], theirs[0][1])
        if begin < end:
            spans.append((begin, end))
        (ours if ours[0][1] <= theirs[0][1] else theirs).pop(0)
    return spans


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Add up spans that do not overlap."""
    return sum(end - begin for begin, end in spans)


def parse(content: Mapping[str, Any]) -> Trace:
    """Read the trace of a rank from what the profiler has exported."""
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    named = [event for event in events if event["name"].startswith("ProfilerStep#")]
    steps = [event for event in named if event["cat"] == "user_annotation"]  # not a GPU's copy of it
    kernels = [event for event in events if event.get("cat") in KERNELS]
    if kernels:
        collectives = [event for event in kernels if event["name"].startswith("nccl")]
        computing = [event for event in kernels if not event["name"].startswith("nccl")]
    else:
        collectives = [event for event in events if event["name"].startswith("gloo:")]
        network = {event["tid"] for event in collectives}  # what these threads copy is communication
        operators = [event for event in events if event["cat"] == "cpu_op" and event["tid"] not in network]
        computing = [event for event in operators if event["name"].startswith("aten::")]
    data = [event for event in events if event["name"] == "data" and event["cat"] == "user_annotation"]
    parts = (sorted(map(_span, part)) for part in (steps, computing, data, collectives))
    return Trace(content.get("distributedInfo", {}).get("rank", 0), *parts)


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


class StepTrace:
    """The traces of all ranks of one run, of the same steps."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        traces = sorted(traces, key=lambda trace: trace.rank)
        counts = {(len(trace.steps), len(trace.collectives)) for trace in traces}
        if len(counts) != 1 or (0, 0) in counts:
            about = f"{len(traces)} traces, of (steps, collectives) {sorted(counts)}"
            raise BadInput("the traces are not of one run", about=about, fix="trace it into an empty folder")
        self.traces = [trace.shifted(_clock(traces[0], trace)) for trace in traces]
        arrivals = zip(*([begin for begin, _ in trace.collectives] for trace in self.traces), strict=True)
        self._last = [max((begin, rank) for rank, begin in enumerate(begins)) for begins in arrivals]

    def _exposed(self, trace: Trace) -> Spans:
        """Return when a rank communicates, in a step, and does nothing else."""
        network = overlap(trace.collectives, trace.steps)
        return _without(network, merged([*trace.computing, *trace.data]))

    def _waits(self, trace: Trace, rank: int) -> Spans:
        """Return when one does nothing but wait for another, in collectives where that one came last."""
        pairs = zip(trace.collectives, self._last, strict=True)
        early = [(begin, last) for (begin, _), (last, late) in pairs if late == rank and begin < last]
        return overlap(self._exposed(trace), early)

    @cached_property
    def seconds(self) -> "pandas.DataFrame":
        """Seconds of a step by rank: its parts, and ``hidden``, the communication while it computes."""
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
        """Seconds of a step in collectives, hidden or not, each from the arrival of its last rank on."""
        collectives = zip(*(trace.collectives for trace in self.traces), strict=True)
        shortest = (min(end - begin for begin, end in ranks) for ranks in collectives)
        return sum(shortest) / 1e6 / len(self.traces[0].steps)

    @cached_property
    def blame(self) -> dict[int, float]:
        """Seconds of a step that the other ranks together wait for each rank."""
        return {
            late.rank: sum(length(self._waits(trace, rank)) for trace in self.traces) / 1e6 / len(late.steps)
            for rank, late in enumerate(self.traces)
        }

    @property
    def slow_rank(self) -> int | None:
        """The rank for which the others wait, if it is one; None where no rank or every rank waits."""
        rank, seconds = max(self.blame.items(), key=lambda item: item[1])
        total = float(self.seconds[list(PARTS)].to_numpy().sum())
        most = seconds >= MIN_BLAME * sum(self.blame.values())
        return rank if most and seconds >= SLOW_SHARE * total else None

    def plot(self) -> "Picture":
        """Draw the parts of a step by rank."""
        from trainyard_kit.step_trace_plot import plot_step_trace

        return plot_step_trace(self.seconds, slow_rank=self.slow_rank)


def _without(spans: Spans, cover: Spans) -> Spans:
    """Return what is in the first and not in the second."""
    edges = [(-1e18, -1e18), *merged(cover), (1e18, 1e18)]
    gaps = [(before[1], after[0]) for before, after in zip(edges, edges[1:], strict=False)]
    return overlap(spans, gaps)


def _clock(first: Trace, second: Trace) -> float:
    """Return what to add to the times of a trace: the median difference of the ends of collectives."""
    pairs = zip(first.collectives, second.collectives, strict=True)
    return statistics.median(ours[1] - theirs[1] for ours, theirs in pairs) if second.collectives else 0.0


def read_traces(folder: str | Path) -> StepTrace:
    """Read the traces of all ranks: the files ``rank-N.json`` or ``rank-N.json.gz`` of a folder."""
    paths = sorted(Path(folder).glob("rank-*.json*"))
    if not paths:
        fix = "pass --trace-dir to trainers/gpt.py, and take at least six steps"
        raise BadInput("there are no traces in the folder", about=str(folder), fix=fix)
    return StepTrace([parse(json.loads(_text(path))) for path in paths])


def _text(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
