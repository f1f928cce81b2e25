"""What elasticity saves a cluster: two jobs on four places, elastic beside gang-scheduled, and beside the
best that the same cluster could do.

Each job is written for three workers. Gang-scheduled, the second begins when all three of its workers have a
place, which is at the end of the first; elastic, it begins with the place that is left over and takes the
others as they become free. A place is a node of the local cluster. Its pace is given: a worker takes so long
for a minibatch and no less, as an accelerator would, because two cores cannot show a speed-up; so the ideal
is arithmetic, all minibatches at that pace on four places that are never idle. Everything else is in the
figures: starting pods, servers, goodbyes. ElasticDL's authors published 0.836 of the gang's makespan.

Bounded by those: places are idle for some 2 s while master and pods start and import, 0.7 s between the jobs,
and up to 2 s at the last tasks.
"""

import time

import kitlib as kit
from bench.lab import Lab
from bench.results import Limit, Result
from bench.sampling import alternate
from kitlib.datasets import Dataset
from kitlib.k8s.quantities import parse_quantity

PLACES, GANG = 4, 3
RECORDS, MINIBATCH = 6000, 50
PACE, QUICK_PACE = 1.0, 0.2
JOB_SECONDS = 1200


def measure(lab: Lab) -> list[Result]:
    """Run both jobs both ways, alternating."""
    lab.clear("theirs")
    volume = lab.ours.create_volume("two-jobs")
    pace = QUICK_PACE if lab.quick else PACE
    try:
        data = kit.prepare_dataset("mnist", volume=volume, synthetic=True, limit=RECORDS, records=True)
        ways = {
            "elastic": lambda: _both(lab, data, pace, GANG + 1),
            "gang": lambda: _both(lab, data, pace, 0),
        }
        samples = alternate(ways, lab.rounds)
    finally:
        for entry in lab.ours.runs():
            lab.ours.run(str(entry["run"])).delete()
        volume.delete()
    ideal = 2 * -(-RECORDS // MINIBATCH) * pace / PLACES
    elastic = tuple(samples["elastic"])
    notes = f"{pace:g} s a minibatch, {GANG} workers a job, {PLACES} places"
    return [
        Result(
            what="two jobs, makespan: elastic",
            unit="s",
            ours=elastic,
            peer="gang-scheduled",
            theirs=tuple(samples["gang"]),
            limit=Limit(1.0),
            notes=notes,
            details={"idle place-seconds": [PLACES * (makespan - ideal) for makespan in elastic]},
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


def _both(lab: Lab, data: Dataset, pace: float, second: int) -> float:
    """Return the makespan; ``second`` is the second job's maximum number of workers, 0 to wait first."""
    cpu = 0.65 * min(parse_quantity(node["cpu"]) for node in lab.ours.nodes())  # one worker a node
    lab.report("two jobs, elastic" if second else "two jobs, gang-scheduled")
    runs = []
    began = time.perf_counter()
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
    seconds = time.perf_counter() - began
    for run in runs:
        run.delete()
    return seconds
