"""Speed-up of runs with different numbers of workers: the time of a step, and its parts. Pure.

A step's time is the median, which is robust to a few slow steps. With a simulated accelerator the computing
time of a rank's batch is known; what the smallest run takes beyond it is serial (Amdahl, 1967). The ranks of
a machine share its cores: their real computing time divided by the cores is a lower bound of a step, and
where it exceeds the simulated time, the difference is waiting for cores. The rest of a step is a residual,
not a measurement: exchanging gradients, and waiting for other ranks.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kitlib.display.tables import Table
from kitlib.errors import BadInput
from kitlib.metrics.events import Event, finite_figure, is_number, whole_number


@dataclass(frozen=True)
class StepTime:
    """A run's median step.

    Attributes:
        workers: The world size.
        batch_size: Images per rank and step.
        seconds: From one step to the next.
        computing: Seconds of a simulated accelerator for ``batch_size`` images; None without one.
        device: Of rank 0: ``cpu``, ``cuda:0``.
        real: CPU seconds of a step of all ranks of one machine, divided by its cores; None if they logged
            no ``cpu_ms``.
        cores: Of that machine; 0 if unknown.
    """

    workers: int
    batch_size: float
    seconds: float
    computing: float | None = None
    device: str = "cpu"
    real: float | None = None
    cores: int = 0

    @property
    def images_per_s(self) -> float:
        """The throughput of all ranks."""
        return self.workers * self.batch_size / self.seconds


def step_time(events: Iterable[Event], *, run: str) -> StepTime:
    """Measure a run's steps by rank 0's ``step`` events, excluding pauses between epochs."""
    events = list(events)
    first_rank = [event for event in events if event.rank == 0]
    rows = ((event, whole_number(event.fields.get("step"))) for event in first_rank if event.event == "step")
    steps = sorted(((row, step) for row, step in rows if step is not None), key=lambda row: row[0].time)
    gaps = [
        (after.time - before.time) / (last - first)
        for (before, first), (after, last) in pairwise(steps)
        if after.fields.get("epoch") == before.fields.get("epoch") and last > first
    ]
    start = next((event for event in first_rank if event.event == "start"), None)
    batch_size = start.fields.get("batch_size") if start else None
    if start is None or not gaps or not is_number(batch_size):
        raise BadInput(
            "a step's time cannot be measured",
            about=f"run {run}: {len(steps)} steps logged by rank 0, batch_size: {batch_size}",
            fix="train for longer, or log every step: --log-every=1; `start` events need a batch_size",
        )
    reported = (
        finite_figure(event.fields.get("ms_per_image"))
        for event in first_rank
        if event.event == "simulated_accelerator"
    )
    rates = [rate for rate in reported if rate is not None]
    computing = rates[0] * batch_size / 1000 if rates else None
    device = str(start.fields.get("device", "cpu"))
    seconds = statistics.median(gaps)
    return StepTime(start.world_size, batch_size, seconds, computing, device, *_real_computing(events))


def _real_computing(events: Sequence[Event]) -> tuple[float | None, int]:
    """Return the CPU seconds of a step divided by the cores, and the cores, of the busiest machine."""
    newest = {
        event.rank: (cpu_ms, cores, str(event.fields.get("machine") or event.rank))
        for event in events
        if event.event == "simulated_accelerator"
        if (cpu_ms := finite_figure(event.fields.get("cpu_ms"))) is not None
        and (cores := whole_number(event.fields.get("cores")))
    }
    seconds: defaultdict[str, float] = defaultdict(float)
    for cpu_ms, cores, machine in newest.values():
        seconds[machine] += cpu_ms / 1000 / cores
    if not seconds:
        return None, 0
    busiest = max(seconds, key=seconds.__getitem__)
    return seconds[busiest], next(cores for _, cores, machine in newest.values() if machine == busiest)


@dataclass(frozen=True)
class StepTimes:
    """Speed-up and efficiency of several runs relative to the smallest."""

    times: tuple[StepTime, ...]

    @property
    def simulated(self) -> bool:
        """Whether all runs had a simulated accelerator."""
        return all(time.computing is not None for time in self.times)

    @property
    def first(self) -> StepTime:
        """The smallest run, the baseline."""
        return self.times[0]

    @property
    def not_divided(self) -> float:
        """The serial part of a step, in seconds, which more workers do not shorten."""
        return max(0.0, self.first.seconds - (self.first.computing or 0.0))

    def speed_up(self, time: StepTime) -> float:
        """A run's throughput relative to the baseline's."""
        return time.images_per_s / self.first.images_per_s

    def efficiency(self, time: StepTime) -> float:
        """The speed-up relative to the ideal one; 1 is ideal."""
        return self.speed_up(time) * self.first.workers / time.workers

    def amdahl(self, time: StepTime) -> float:
        """Predict the efficiency by Amdahl's law: without a network, only computing is divided."""
        step = (time.computing or 0.0) + self.not_divided
        return time.batch_size / step / (self.first.batch_size / self.first.seconds)

    def waiting_for_cores(self, time: StepTime) -> float:
        """Seconds of a step by which real computing on shared cores exceeds the simulated time."""
        if time.real is None or time is self.first:
            return 0.0
        known = (time.computing or 0.0) + self.not_divided
        return max(0.0, min(time.real, time.seconds) - known)

    def rest(self, time: StepTime) -> float:
        """The residual of a step, in seconds: exchanging gradients, and waiting for other ranks."""
        known = (time.computing or 0.0) + self.not_divided + self.waiting_for_cores(time)
        return max(0.0, time.seconds - known)

    def too_few_cores(self) -> str:
        """Describe that a run measures cores instead of the accelerator; empty if none does."""
        limited = [time for time in self.times if (time.real or 0.0) > (time.computing or 0.0) > 0]
        if not limited:
            return ""
        time = max(limited, key=lambda time: time.real or 0.0)
        real, simulated = 1000 * (time.real or 0.0), 1000 * (time.computing or 0.0)
        return (
            f"With {time.workers} workers a step really computes for {real:.0f} ms on all {time.cores} cores "
            f"of a machine, longer than the simulated {simulated:.0f} ms: the ranks wait for cores, as they "
            "would not with one accelerator each."
        )

    def table(self) -> Table:
        """Tabulate the runs."""
        columns: tuple[str, ...] = (
            "workers",
            "images a worker",
            "ms a step",
            "images/s",
            "speed-up",
            "efficiency %",
        )
        if self.simulated:
            columns += (
                "computing ms",
                "really ms",
                "not divided ms",
                "cores ms",
                "rest ms",
                "efficiency % by Amdahl",
            )
        return Table(columns, [self._row(time) for time in self.times])

    def _row(self, time: StepTime) -> tuple[float | str, ...]:
        def ms(seconds: float | None) -> float | str:
            return "-" if seconds is None else round(seconds * 1e3, 1)

        row: tuple[float | str, ...] = (time.workers, time.batch_size, ms(time.seconds))
        speed_up, efficiency = round(self.speed_up(time), 2), round(100 * self.efficiency(time))
        row += (round(time.images_per_s, 1), speed_up, efficiency)
        if self.simulated:
            rest = (self.not_divided, self.waiting_for_cores(time), self.rest(time))
            row += (ms(time.computing), ms(time.real), *map(ms, rest), round(100 * self.amdahl(time)))
        return row

    def __repr__(self) -> str:
        return "\n".join(filter(None, (repr(self.table()), self.too_few_cores())))

    def _repr_html_(self) -> str:
        note = self.too_few_cores()
        return self.table()._repr_html_() + (f"<p>{note}</p>" if note else "")
