"""Speed-up of runs that differ in their number of workers: the time of a step, and what it consists of. Pure.

A step's time is the median, which a few slow steps do not move. With a simulated accelerator, the computing
time of a rank's batch is known. What the smallest run takes beyond it is not divided among workers (Amdahl,
1967); what a larger run takes beyond both is the network's share.
"""

import statistics
from collections.abc import Iterable
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
        batch_size: Images of one rank in a step.
        seconds: From one step to the next.
        computing: Seconds that a simulated accelerator takes for ``batch_size`` images; None without one.
        device: Of rank 0: ``cpu``, ``cuda:0``.
    """

    workers: int
    batch_size: float
    seconds: float
    computing: float | None = None
    device: str = "cpu"

    @property
    def images_per_s(self) -> float:
        """Of all ranks together."""
        return self.workers * self.batch_size / self.seconds


def step_time(events: Iterable[Event], *, run: str) -> StepTime:
    """Measure a run's steps by the ``step`` events of rank 0; pauses between epochs do not count."""
    of_rank_0 = [event for event in events if event.rank == 0]
    rows = ((event, whole_number(event.fields.get("step"))) for event in of_rank_0 if event.event == "step")
    steps = sorted(((row, step) for row, step in rows if step is not None), key=lambda row: row[0].time)
    gaps = [
        (after.time - before.time) / (last - first)
        for (before, first), (after, last) in pairwise(steps)
        if after.fields.get("epoch") == before.fields.get("epoch") and last > first
    ]
    start = next((event for event in of_rank_0 if event.event == "start"), None)
    batch_size = start.fields.get("batch_size") if start else None
    if start is None or not gaps or not is_number(batch_size):
        raise BadInput(
            "a step's time cannot be measured",
            about=f"run {run}: {len(steps)} steps logged by rank 0, images of a rank in a step: {batch_size}",
            fix="train for longer, or log every step: --log-every=1; `start` events need a batch_size",
        )
    reported = (
        finite_figure(event.fields.get("ms_per_image"))
        for event in of_rank_0
        if event.event == "simulated_accelerator"
    )
    rates = [rate for rate in reported if rate is not None]
    computing = rates[0] * batch_size / 1000 if rates else None
    device = str(start.fields.get("device", "cpu"))
    return StepTime(start.world_size, batch_size, statistics.median(gaps), computing, device)


@dataclass(frozen=True)
class StepTimes:
    """Speed-up and efficiency of several runs relative to the smallest."""

    times: tuple[StepTime, ...]

    @property
    def simulated(self) -> bool:
        """True if every run had a simulated accelerator."""
        return all(time.computing is not None for time in self.times)

    @property
    def first(self) -> StepTime:
        """The smallest run, to which the others are compared."""
        return self.times[0]

    @property
    def not_divided(self) -> float:
        """Seconds of a step that more workers do not shorten."""
        return max(0.0, self.first.seconds - (self.first.computing or 0.0))

    def speed_up(self, time: StepTime) -> float:
        """Divide a run's images per second by those of the smallest."""
        return time.images_per_s / self.first.images_per_s

    def efficiency(self, time: StepTime) -> float:
        """Divide the speed-up by what that many workers could reach; 1 is ideal."""
        return self.speed_up(time) * self.first.workers / time.workers

    def amdahl(self, time: StepTime) -> float:
        """Predict the efficiency without a network: only computing is divided."""
        step = (time.computing or 0.0) + self.not_divided
        return time.batch_size / step / (self.first.batch_size / self.first.seconds)

    def network(self, time: StepTime) -> float:
        """Return the seconds of a step that are left: exchanging gradients, and waiting for each other."""
        return max(0.0, time.seconds - (time.computing or 0.0) - self.not_divided)

    def table(self) -> Table:
        """Tabulate it, a row for each run."""
        columns: tuple[str, ...] = (
            "workers",
            "images a worker",
            "ms a step",
            "images/s",
            "speed-up",
            "efficiency %",
        )
        if self.simulated:
            columns += ("computing ms", "not divided ms", "network ms", "efficiency % by Amdahl")
        return Table(columns, [self._row(time) for time in self.times])

    def _row(self, time: StepTime) -> tuple[float, ...]:
        row: tuple[float, ...] = (
            time.workers,
            time.batch_size,
            round(time.seconds * 1e3, 1),
            round(time.images_per_s, 1),
        )
        row += (round(self.speed_up(time), 2), round(100 * self.efficiency(time)))
        if self.simulated:
            parts = (time.computing or 0.0, self.not_divided, self.network(time))
            row += (*(round(part * 1e3, 1) for part in parts), round(100 * self.amdahl(time)))
        return row

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
