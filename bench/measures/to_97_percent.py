"""What a learner waits for: digits to 97%, from submitting to the result, beside a bare torchrun of two.

The trainer's own settings, a thread a rank on both sides. A run that does not reach 97% is no sample.
"""

from bench import training
from bench.errors import MeasureFailed
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

RANKS, GOAL = 2, 0.97
LIMIT = Limit(1.15)
PEER = "torchrun --nproc-per-node 2"


def measure(lab: Lab) -> list[Result]:
    """Train with the trainer's defaults on each side in turns."""
    lab.clear("theirs")
    sides = {
        "ours": lambda: _reaching(training.in_cluster(lab.ours, RANKS, flags={}, patch=None)),
        "theirs": lambda: _reaching(training.bare(RANKS, flags={}, folder=lab.folder)),
    }
    lab.report("a first run of each")
    for once in sides.values():
        once()
    samples = alternate(sides, lab.rounds)
    return [
        Result(
            what=f"digits to {GOAL:.0%} on 2 pods, submit → result",
            unit="s",
            ours=tuple(sample.total for sample in samples["ours"]),
            peer=PEER,
            theirs=tuple(sample.total for sample in samples["theirs"]),
            limit=LIMIT,
            details={"accuracy": sorted({sample.accuracy for side in samples.values() for sample in side})},
        )
    ]


def _reaching(times: training.Times) -> training.Times:
    if times.accuracy is None or times.accuracy < GOAL:
        raise MeasureFailed(f"digits reached {times.accuracy} and not {GOAL}")
    return times
