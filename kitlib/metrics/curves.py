"""Training curves by rank, epochs and the latest values, from a run's events in bounded memory. Pure.

Each rank has at most :data:`MAX_ROWS` rows; when they are full, its steps are divided into buckets of which
the rows with the least and the greatest loss are kept, so that no peak is lost. A row has the exponential
moving average of all losses until then, dropped ones included; a second, backward pass centres it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kitlib.k8s.pods import is_replica_id
from kitlib.metrics.events import Event, figure, finite_figure, whole_number

STEP, LOSS, SMOOTH, RATE, WORLD, GPU = range(6)  # the columns of a rank's rows
MAX_ROWS, MAX_RANKS = 4096, 512
WEIGHT = 0.4  # of a new loss in the moving average, asymptotically
KERNEL = (1 - WEIGHT) ** np.arange(24)  # of the backward pass, cut where weights are negligible
TOTALS = np.cumsum(KERNEL)
MAX_BUCKETS, MIN_BUCKETS = 320, 60
MAX_BYTES = 48_000  # of a frame, for slow connections


@dataclass(frozen=True)
class Curves:
    """Curves decimated for drawing: one column for each point, shared by all ranks.

    Attributes:
        steps: Of each column, increasing; shape (columns,).
        ranks: Of the rows of ``loss``.
        loss: Shape (ranks, columns); NaN if not reported.
        smooth: The mean over the ranks of their smoothed losses; shape (columns,).
        rate: Images a second of all ranks; NaN if not reported.
        world: The world size.
        gpu: Percent of each rank's GPU, shape (ranks, columns); no rows if not reported.
        validation: The mean over the ranks of the validation losses, each at the last column that is not
            after it; NaN elsewhere.
    """

    steps: np.ndarray
    ranks: tuple[int, ...]
    loss: np.ndarray
    smooth: np.ndarray
    rate: np.ndarray
    world: np.ndarray
    gpu: np.ndarray
    validation: np.ndarray


@dataclass
class EpochMetrics:
    """The metrics of one epoch: losses and images a second by rank, seconds of the slowest rank."""

    loss: dict[int, float] = field(default_factory=dict)
    rate: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    accuracy: float | None = None

    @property
    def mean_loss(self) -> float:
        """The mean over the ranks."""
        return sum(self.loss.values()) / len(self.loss) if self.loss else math.nan


class TrainingMetrics:
    """Training metrics of a run; add its events from one thread."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.epochs: dict[int, EpochMetrics] = {}
        self.accuracy: float | None = None
        self.world_size: int = 0
        self.synthetic: bool = False
        self.validation: dict[int, dict[int, float]] = {}
        self.ended: set[int] = set()
        self._rows: dict[int, _Rows] = {}
        for row in sorted(events, key=lambda event: event.time):
            self.add(row)

    def add(self, event: Event) -> None:
        """Add an event; one without valid numbers is ignored."""
        self.world_size = event.world_size
        self.synthetic = self.synthetic or event.fields.get("synthetic") is True
        if event.event == "step":
            self._step(event)
        elif event.event == "epoch":
            self._epoch(event)
        elif event.event == "eval":
            self._eval(event)
        elif event.event == "end":
            self.ended.add(event.rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have reported steps."""
        return tuple(sorted(self._rows))

    def replica(self, rank: int) -> int | str:
        """Identify a rank that has reported steps: ``3``, or ``worker-3`` beside parameter servers."""
        return self._rows[rank].replica or rank

    @property
    def last_step(self) -> int | None:
        """The largest of the ranks' last steps."""
        return max((int(row.newest[STEP]) for row in self._rows.values()), default=None)

    def first_and_last_loss(self) -> tuple[float, float]:
        """The means over the ranks of their first and last losses; NaN without any."""
        ends = [(row.view[0, LOSS], row.newest[LOSS]) for row in self._rows.values()]
        if not ends:
            return math.nan, math.nan
        first, last = np.mean(ends, axis=0)
        return float(first), float(last)

    def validation_losses(self) -> list[tuple[int, float]]:
        """List the steps of evaluations, with the mean over the ranks of the reported losses."""
        return [
            (step, float(np.mean([*losses.values()]))) for step, losses in sorted(self.validation.items())
        ]

    def latest(self) -> list[tuple[int, int, float, float, float]]:
        """List rank, step, loss, smoothed loss and images a second of each rank, as last reported."""
        return [
            (rank, int(row[STEP]), float(row[LOSS]), float(row[SMOOTH]), float(row[RATE]))
            for rank, row in ((rank, self._rows[rank].newest) for rank in self.ranks)
        ]

    def frame(self) -> Curves:
        """Build all curves, decimated if they have more points than can be drawn."""
        ranks = self.ranks
        buckets = max(MIN_BUCKETS, min(MAX_BUCKETS, MAX_BYTES // (8 * (len(ranks) + 5))))
        rows = [_centre(self._rows[rank].view) for rank in ranks]
        if max(map(len, rows), default=0) > 2 * buckets:
            width = _width(rows, buckets)
            rows = [_align(row, width) for row in rows]
        steps = np.unique(np.concatenate([row[:, STEP] for row in rows])) if rows else np.empty(0)
        spread = np.full((len(ranks), len(steps), 6), np.nan)
        for index, row in enumerate(rows):
            spread[index, np.searchsorted(steps, row[:, STEP])] = row
        return _frame(steps, ranks, spread, self.validation_losses())

    def _step(self, event: Event) -> None:
        step, loss = whole_number(event.fields.get("step")), figure(event.fields.get("loss"))
        if step is None or loss is None or (event.rank not in self._rows and len(self._rows) >= MAX_RANKS):
            return
        rate, gpu = (
            math.nan if (value := figure(event.fields.get(key))) is None else value
            for key in ("images_per_s", "gpu_percent")
        )
        rows = self._rows.setdefault(event.rank, _Rows())
        rows.add(step, loss, rate, event.world_size, gpu)
        if is_replica_id(replica := f"{event.fields.get('role')}-{event.rank}"):
            rows.replica = replica

    def _epoch(self, event: Event) -> None:
        number, loss = whole_number(event.fields.get("epoch")), figure(event.fields.get("loss"))
        if number is None or (number not in self.epochs and len(self.epochs) >= MAX_ROWS):
            return
        epoch = self.epochs.setdefault(number, EpochMetrics())
        if loss is not None:
            epoch.loss[event.rank] = loss
        rate, seconds = (finite_figure(event.fields.get(key)) for key in ("images_per_s", "seconds"))
        if rate is not None:
            epoch.rate[event.rank] = rate
        epoch.seconds = max(epoch.seconds, seconds or 0.0)

    def _eval(self, event: Event) -> None:
        loss, step = figure(event.fields.get("loss")), finite_figure(event.fields.get("step", self.last_step))
        if loss is not None and step is not None and len(self.validation) < MAX_ROWS:
            self.validation.setdefault(int(step), {})[event.rank] = loss
        accuracy = finite_figure(event.fields.get("accuracy"))
        if accuracy is None:
            return
        self.accuracy = accuracy
        number = whole_number(event.fields.get("epoch", max(self.epochs, default=None)))
        if number is not None and number in self.epochs:
            self.epochs[number].accuracy = accuracy


class _Rows:
    """One rank's rows, by step."""

    def __init__(self) -> None:
        self.rows = np.empty((256, 6))
        self.count = 0
        self.replica = ""

    @property
    def view(self) -> np.ndarray:
        return self.rows[: self.count]

    @property
    def newest(self) -> np.ndarray:
        return self.rows[self.count - 1]

    def add(self, step: int, loss: float, rate: float, world: int, gpu: float) -> None:
        if self.count and step <= self.newest[STEP]:  # resumed from a checkpoint: keep the later attempt
            self.count = int(np.searchsorted(self.view[:, STEP], step))
        before = self.newest[SMOOTH] if self.count else loss
        weight = WEIGHT / (1 - (1 - WEIGHT) ** (self.count + 1))  # bias-corrected, as in Adam
        smooth = before + weight * (loss - before) if math.isfinite(loss) else before
        self._make_room()
        self.rows[self.count] = (step, loss, smooth if math.isfinite(smooth) else loss, rate, world, gpu)
        self.count += 1

    def _make_room(self) -> None:
        if self.count < len(self.rows):
            return
        if self.count < MAX_ROWS:
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
            return
        thinned = _extremes(self.view, _width([self.view], MAX_ROWS // 4))
        self.count = len(thinned)
        self.rows[: self.count] = thinned


def _width(rows: list[np.ndarray], buckets: int) -> int:
    """Choose the steps per bucket: a power of two, so that buckets are only merged later."""
    steps = max(float(row[-1, STEP]) for row in rows) - min(float(row[0, STEP]) for row in rows)
    return 2 ** max(0, math.ceil(math.log2(max(1.0, (steps + 1) / buckets))))


def _extremes(rows: np.ndarray, width: int) -> np.ndarray:
    """Return the rows with the least and the greatest loss of each bucket of steps, in order."""
    bucket = rows[:, STEP] // width
    by_loss = np.lexsort((rows[:, LOSS], bucket))
    begins = np.flatnonzero(np.diff(bucket[by_loss], prepend=-np.inf))
    ends = np.append(begins[1:], len(rows)) - 1
    return rows[np.unique(by_loss[np.concatenate([begins, ends])])]


def _centre(rows: np.ndarray) -> np.ndarray:
    """Average backwards as well, because a mean of the past lags behind a decreasing loss.

    In the first rows the window is symmetric, so that the curve starts at the first loss.
    """
    centred, count = rows.copy(), len(rows)
    weights = TOTALS[np.minimum(np.arange(count), len(KERNEL) - 1)]
    centred[:, SMOOTH] = (np.convolve(rows[::-1, SMOOTH], KERNEL)[:count] / weights)[::-1]
    for row in range(min(len(KERNEL), count)):
        later = rows[row : 2 * row + 1, SMOOTH][: len(KERNEL)]
        centred[row, SMOOTH] = later @ KERNEL[: len(later)] / TOTALS[len(later) - 1]
    return centred


def _align(rows: np.ndarray, width: int) -> np.ndarray:
    """Move the extremes of each bucket to its beginning and its middle, the same for all ranks."""
    thinned = _extremes(rows, width)
    bucket = thinned[:, STEP] // width
    second = np.diff(bucket, prepend=-1) == 0
    thinned[:, STEP] = bucket * width + second * (width / 2)
    return thinned


def _frame(
    steps: np.ndarray, ranks: tuple[int, ...], spread: np.ndarray, evaluations: list[tuple[int, float]]
) -> Curves:
    filled = _fill_forward(spread)
    sizes = spread[:, :, WORLD]  # not filled: the last world size of a rank that has left is outdated
    world = np.max(sizes, axis=0, initial=0, where=~np.isnan(sizes))
    active = np.array(ranks)[:, None] < np.maximum(world, 1)[None, :]  # without ranks that have left
    gpu = spread[:, :, GPU]
    validation = np.full(len(steps), np.nan)
    for step, loss in evaluations if len(steps) else ():
        validation[max(0, int(np.searchsorted(steps, step, side="right")) - 1)] = loss
    return Curves(
        steps=steps,
        ranks=ranks,
        loss=spread[:, :, LOSS],
        smooth=_over_ranks(filled[:, :, SMOOTH], active, mean=True),
        rate=_over_ranks(filled[:, :, RATE], active, mean=False),
        world=world,
        gpu=gpu if np.isfinite(gpu).any() else np.empty((0, len(steps))),
        validation=validation,
    )


def _fill_forward(spread: np.ndarray) -> np.ndarray:
    """Fill the gaps of each rank with its last values."""
    valid = ~np.isnan(spread[:, :, STEP])
    index = np.maximum.accumulate(np.where(valid, np.arange(spread.shape[1]), 0), axis=1)
    return np.take_along_axis(spread, index[:, :, None], axis=1)


def _over_ranks(values: np.ndarray, active: np.ndarray, *, mean: bool) -> np.ndarray:
    known = active & ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1) if mean else total, np.nan)
