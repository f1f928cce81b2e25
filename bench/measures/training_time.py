"""What a cluster costs while training goes on: an Indexed Job of 2 × 1 process beside a bare torchrun of 2.

Both sides have a thread a rank, the same flags, and at least half a minute of work. Two lines: from the first
step to the end, and from submitting to the end, where pods forked by the forkserver win back some.
"""

import math

from bench import training
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

RANKS = 2
SECONDS, QUICK_SECONDS = 32, 6
PROBE_EPOCHS = 30
LIMIT = Limit(1.05)
PEER = "torchrun --nproc-per-node 2"


def measure(lab: Lab) -> list[Result]:
    """Train on each side in turns."""
    lab.clear("theirs")
    wanted = QUICK_SECONDS if lab.quick else SECONDS
    flags = {"epochs": _epochs(lab, wanted)}
    training.in_cluster(lab.ours, RANKS, flags={"epochs": 1}, patch=None)
    samples = alternate(
        {
            "ours": lambda: training.in_cluster(lab.ours, RANKS, flags=flags, patch=None),
            "theirs": lambda: training.bare(RANKS, flags=flags, folder=lab.folder),
        },
        lab.rounds,
    )
    details = {
        "epochs": flags["epochs"],
        "threads": sorted({t for s in samples.values() for x in s for t in x.threads}),
    }
    return [
        Result(
            what=f"train on 2 × 1 process, {part}",
            unit="s",
            ours=tuple(getattr(sample, attribute) for sample in samples["ours"]),
            peer=PEER,
            theirs=tuple(getattr(sample, attribute) for sample in samples["theirs"]),
            limit=LIMIT,
            details=details,
        )
        for part, attribute in (("first step → end", "training"), ("submit → end", "total"))
    ]


def _epochs(lab: Lab, wanted: float) -> int:
    """Return for how many epochs a bare torchrun trains as long as wanted."""
    lab.report("finding out how many epochs are half a minute")
    probe = training.bare(RANKS, flags={"epochs": PROBE_EPOCHS}, folder=lab.folder)
    return math.ceil(wanted / (probe.training / PROBE_EPOCHS))
