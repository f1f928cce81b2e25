"""The makespan of two jobs on four slots: elastic, gang-scheduled, and the ideal of the same cluster.

Each job is written for three workers. Gang-scheduled, the second starts when all three of its workers have a
slot, at the end of the first; elastic, it starts on the remaining slot and takes the others as they become
free. A slot is a node of the local cluster. A worker takes a fixed time per minibatch, like an accelerator,
because two cores cannot show a speed-up; so the ideal is computed: all minibatches at that rate on four slots
that are never idle. The measured figures include starting pods and servers, and leaving workers. ElasticDL's
authors published 0.836 of the gang's makespan.

Bounded by idle slots: about 2 s while master and pods start and import, 0.7 s between the jobs, and up to 2 s
during the last tasks.
"""

import time

import kitlib as kit
from bench.lab import KUBELET, KWOK, Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from kitlib.datasets import Dataset
from kitlib.k8s.quantities import parse_quantity

SLOTS, GANG = 4, 3
RECORDS, MINIBATCH = 6000, 50
PACE, QUICK_PACE = 1.0, 0.2
JOB_SECONDS = 1200


def measure(lab: Lab) -> list[Result]:
    """Run both jobs elastic and gang-scheduled, alternating."""
    lab.clear(KUBELET, KWOK)
    volume = lab.ours.create_volume("two-jobs")
    pace = QUICK_PACE if lab.quick else PACE
    try:
        data = kit.prepare_dataset("mnist", volume=volume, synthetic=True, limit=RECORDS, records=True)
        sides = {
            "elastic": lambda: _makespan(lab, data, pace, GANG + 1),
            "gang": lambda: _makespan(lab, data, pace, 0),
        }
        samples = alternate(sides, lab.rounds)
    finally:
        for entry in lab.ours.runs():
            lab.ours.run(str(entry["run"])).delete()
        volume.delete()
    ideal = 2 * -(-RECORDS // MINIBATCH) * pace / SLOTS
    elastic = tuple(samples["elastic"])
    notes = f"{pace:g} s per minibatch, {GANG} workers per job, {SLOTS} slots"
    return [
        Result(
            what="two jobs, makespan: elastic",
            unit="s",
            ours=elastic,
            peer="gang-scheduled",
            theirs=tuple(samples["gang"]),
            limit=Limit(1.0),
            notes=notes,
            details={"idle slot-seconds": [SLOTS * (makespan - ideal) for makespan in elastic]},
        ),
        Result(
            what="two jobs, makespan: elastic",
            unit="s",
            ours=elastic,
            peer="the ideal, computed",
            theirs=(ideal,),
            limit=Limit(1.1),
            notes=notes,
        ),
    ]


def _makespan(lab: Lab, data: Dataset, pace: float, second: int) -> float:
    """Return the makespan; ``second`` is the second job's maximum number of workers, 0 to wait first."""
    cpu = 0.65 * min(parse_quantity(node["cpu"]) for node in lab.ours.nodes())  # one worker per node
    lab.report("two jobs, elastic" if second else "two jobs, gang-scheduled")
    runs = []
    start = time.perf_counter()
    for name, workers in (("two-jobs-1", GANG), ("two-jobs-2", second or GANG)):
        job = kit.ParameterServer(
            "trainers/mnist_parameter_server.py",
            name=name,
            data=data,
            workers=workers,
            servers=1,
            minibatch_size=MINIBATCH,
            minibatches_per_task=2,
            cpu=round(cpu, 3),
            args={"step_seconds": pace, "max_staleness": 100},
        )
        runs.append(kit.launch(job, cluster=lab.ours))
        if not second:
            runs[-1].wait(timeout=JOB_SECONDS)
    for run in runs:
        run.wait(timeout=JOB_SECONDS)
    seconds = time.perf_counter() - start
    for run in runs:
        run.delete()
    return seconds
