"""From submitting a job to its first training step, with four ranks, beside a bare torchrun of four.

The kit's Job has a torchrun in each pod, as on any cluster, and torchrun starts the trainer as a process of
its own; so it is measured too with the trainer as the pod's command. Cold means that every pod begins with
nothing, and a torchrun in it forks its worker; warm that pods are forked by the cluster's forkserver.

Bounded, cold, by `import torch`, once in each pod on two cores; warm by the pod's start and gloo's
rendezvous.
"""

from bench import training
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from kitlib.k8s.manifests import merge

RANKS = 4
FLAGS = {"epochs": 1, "log-every": 1}
COLD_LIMIT, WARM_LIMIT = Limit(0.9), Limit(0.3)
PEER = "torchrun --nproc-per-node 4"
LINES = (
    ("cold, the trainer itself", "cold-python", COLD_LIMIT),
    ("cold, torchrun in each pod", "cold-torchrun", COLD_LIMIT),
    ("warm, the trainer itself", "warm-python", WARM_LIMIT),
    ("warm, torchrun in each pod", "warm-torchrun", WARM_LIMIT),
)
WARM_UPS = 5


def measure(lab: Lab) -> list[Result]:
    """Train for an epoch, in every way in turns."""
    lab.clear("theirs")
    python = training.as_python(RANKS)
    patches = {
        "cold-python": merge(training.COLD, python),
        "cold-torchrun": training.COLD,
        "warm-python": python,
        "warm-torchrun": None,
    }
    sides = {
        name: lambda patch=patch: training.in_cluster(lab.ours, RANKS, flags=FLAGS, patch=patch)
        for name, patch in patches.items()
    }
    sides["bare"] = lambda: training.bare(RANKS, flags=FLAGS, folder=lab.folder)
    _warm_up(lab, python)
    sides["bare"]()
    lab.report("first steps")
    samples = alternate(sides, lab.rounds)
    return [_result(samples, what, side, limit) for what, side, limit in LINES]


def _warm_up(lab: Lab, patch: dict) -> None:
    """Run a job until the forkserver starts its pods, so that no sample is of a forkserver still loading."""
    for _ in range(WARM_UPS):
        lab.report("waiting for the forkserver")
        if training.in_cluster(lab.ours, RANKS, flags=FLAGS, patch=patch).warm == RANKS:
            return


def _result(samples: dict[str, list[training.Times]], what: str, side: str, limit: Limit) -> Result:
    ours = samples[side]
    warm = sum(each.warm for each in ours)
    expected = RANKS * len(ours) if side.startswith("warm") else 0
    return Result(
        what=f"submit → first step, 4 ranks, {what}",
        unit="s",
        ours=tuple(each.to_first_step for each in ours),
        peer=PEER,
        theirs=tuple(each.to_first_step for each in samples["bare"]),
        limit=limit,
        notes="" if warm == expected else f"{warm} pods came from the forkserver, not {expected}",
        details={"pods from the forkserver": [each.warm for each in ours]},
    )
