"""From submitting a job to its first training step: the kit beside the Kubeflow SDK's LocalProcessBackend.

One process trains on both sides; ours is a pod on a cluster that runs. The SDK makes a virtual environment
for every job and installs torch into it, from wheels that lie on this machine. Its best case is the second
line: what is left when environment and packages have cost nothing.
"""

from bench import kubeflow, training
from bench.errors import PeerAbsent
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate

FLAGS = {"epochs": 1, "log-every": 1}
LIMIT = Limit(0.25)
MOST_ROUNDS = 2  # of the SDK's jobs each takes minutes
PEER = f"Kubeflow SDK {kubeflow.VERSION}, LocalProcessBackend"
WHAT = "submit → first step, 1 process"


def measure(lab: Lab) -> list[Result]:
    """Train for an epoch on each side in turns."""
    lab.clear("theirs")

    def ours() -> float:
        return training.in_cluster(lab.ours, 1, flags=FLAGS, patch=None).to_first_step

    ours()
    try:
        python = kubeflow.obtain(lab.report)
    except PeerAbsent as reason:
        samples = alternate({"ours": ours}, lab.rounds)
        return [Result(what=WHAT, unit="s", ours=tuple(samples["ours"]), absent=str(reason), limit=LIMIT)]
    lab.report("first steps; each of the SDK's takes minutes")
    samples = alternate(
        {"ours": ours, "theirs": lambda: kubeflow.train(python, flags=FLAGS, folder=lab.folder)},
        min(lab.rounds, MOST_ROUNDS),
    )
    jobs: list[kubeflow.Job] = samples["theirs"]
    sides = (
        (WHAT, PEER, [job.times.to_first_step for job in jobs], LIMIT),
        (f"{WHAT}, its best case", f"{PEER}, environment ready", [job.best for job in jobs], None),
    )
    return [
        Result(
            what=what,
            unit="s",
            ours=tuple(samples["ours"]),
            peer=peer,
            theirs=tuple(theirs),
            limit=limit,
        )
        for what, peer, theirs, limit in sides
    ]
