"""From submitting a job to its first training step: the kit beside the Kubeflow SDK's LocalProcessBackend.

One process trains on both sides; ours is a pod on a cluster that runs. The SDK makes a virtual environment
for every job and installs torch into it, from wheels that lie on this machine. Its best case is the second
line: what is left when environment and packages have cost nothing.
"""

from bench import kubeflow, training
from bench.errors import PeerAbsent
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate

FLAGS = {"epochs": 1, "log-every": 1}
LIMIT = Limit(0.25)
MOST_ROUNDS = 2  # of the SDK's jobs each takes minutes
PEER = f"Kubeflow SDK {kubeflow.VERSION}, LocalProcessBackend"
Sample = tuple[float, float]  # seconds to the first step, and without those for the environment
WHAT = "submit → first step, 1 process"


def measure(lab: Lab) -> list[Result]:
    """Train for an epoch on each side in turns."""
    lab.clear(KUBELET, KWOK)

    def ours() -> Sample:
        seconds = training.in_cluster(lab.ours, 1, flags=FLAGS, patch=None).to_first_step
        return seconds, seconds

    ours()
    try:
        python = kubeflow.obtain(lab.report)
    except PeerAbsent as reason:
        alone = [seconds for seconds, _ in alternate({"ours": ours}, lab.rounds)["ours"]]
        return [Result(what=WHAT, unit="s", ours=tuple(alone), absent=str(reason), limit=LIMIT)]

    def theirs() -> Sample:
        job = kubeflow.train(python, flags=FLAGS, folder=lab.folder)
        return job.times.to_first_step, job.best

    lab.report("first steps; each of the SDK's takes minutes")
    samples = alternate({"ours": ours, "theirs": theirs}, min(lab.rounds, MOST_ROUNDS))
    sides = (
        (WHAT, PEER, [seconds for seconds, _ in samples["theirs"]], LIMIT),
        (
            f"{WHAT}, its best case",
            f"{PEER}, environment ready",
            [best for _, best in samples["theirs"]],
            None,
        ),
    )
    return [
        Result(
            what=what,
            unit="s",
            ours=tuple(seconds for seconds, _ in samples["ours"]),
            peer=peer,
            theirs=tuple(durations),
            limit=limit,
        )
        for what, peer, durations, limit in sides
    ]
