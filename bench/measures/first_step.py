"""From submitting a job to its first step with four ranks, compared with real kubelets and a bare torchrun.

The kit's Job has a torchrun in each pod, as on any cluster, which starts the trainer as a separate process;
so the trainer as the pod's command is measured as well. Cold pods start from scratch, and their torchrun
forks the worker; warm pods are forked by the cluster's forkserver. The kubelets get the same Job; its image
has been pulled and uses this machine's Python environment.

Cold, bounded by `import torch` in each pod on two cores; warm, by the pod's start and gloo's rendezvous.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from bench import training
from bench.lab import KUBELET, KWOK, PEERS, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from kitlib.k8s.manifests import merge

RANKS = 4
FLAGS = {"epochs": 1, "log-every": 1}
BARE = "bare"
NAMES = {BARE: f"torchrun --nproc-per-node {RANKS}", KUBELET: f"the same Job, {PEERS[KUBELET]}"}
COLD, WARM = {BARE: 0.9}, {BARE: 0.3}
LINES = (
    ("cold, the trainer itself", "cold-python", COLD),
    ("cold, torchrun in each pod", "cold-torchrun", {KUBELET: 0.6} | COLD),
    ("warm, the trainer itself", "warm-python", WARM),
    ("warm, torchrun in each pod", "warm-torchrun", {KUBELET: 0.15} | WARM),
)
WARM_UPS = 5


def measure(lab: Lab) -> list[Result]:
    """Train for an epoch, alternating between all sides."""
    lab.clear(KWOK)
    python = training.as_python(RANKS)
    patches = {
        "cold-python": merge(training.COLD, python),
        "cold-torchrun": training.COLD,
        "warm-python": python,
        "warm-torchrun": None,
    }
    sides: dict[str, Callable[[], training.Times]] = {
        name: partial(training.in_cluster, lab.ours, RANKS, flags=FLAGS, patch=patch)
        for name, patch in patches.items()
    }
    sides[BARE] = lambda: training.bare(RANKS, flags=FLAGS, folder=lab.folder)
    if (real := lab.real) is not None:
        sides[KUBELET] = partial(training.in_cluster, real, RANKS, flags=FLAGS, patch=None)
        sides[KUBELET]()
    _warm_up(lab, python)
    sides[BARE]()
    lab.report("first steps")
    samples = alternate(sides, lab.rounds)
    return [
        _result(lab, samples, what, side, peer, Limit(share))
        for what, side, shares in LINES
        for peer, share in shares.items()
    ]


def _warm_up(lab: Lab, patch: dict[str, Any]) -> None:
    """Run a job until the forkserver starts its pods, so that no sample includes its loading."""
    for _ in range(WARM_UPS):
        lab.report("waiting for the forkserver")
        if training.in_cluster(lab.ours, RANKS, flags=FLAGS, patch=patch).warm == RANKS:
            return


def _result(
    lab: Lab, samples: dict[str, list[training.Times]], what: str, side: str, peer: str, limit: Limit
) -> Result:
    ours = samples[side]
    warm = sum(times.warm for times in ours)
    expected = RANKS * len(ours) if side.startswith("warm") else 0
    return Result(
        what=f"submit → first step, {RANKS} ranks, {what}",
        unit="s",
        ours=tuple(times.to_first_step for times in ours),
        peer=NAMES[peer],
        theirs=tuple(times.to_first_step for times in samples.get(peer, ())),
        absent=lab.absent.get(peer, ""),
        limit=limit,
        notes="" if warm == expected else f"{warm} pods came from the forkserver, not {expected}",
        details={"pods from the forkserver": [times.warm for times in ours]},
    )
