"""The measures by name, in the order in which they run; ``make bench`` runs those of `FELT`.

Each module has ``measure(lab)``, which returns rows of the table; its docstring describes the comparison.
"""

from collections.abc import Callable

from bench.lab import Lab
from bench.measures import (
    attendees,
    command,
    creation,
    elastic_launch,
    elastic_recovery,
    faults,
    first_step,
    idle,
    many_pods,
    parameter_server,
    pod_start,
    sleep,
    task_service,
    turnaround,
    two_jobs,
    workshop,
)
from bench.results import Result

FELT: dict[str, Callable[[Lab], list[Result]]] = {  # waits that attendees of a workshop notice
    "command": command.measure,
    "creation": creation.measure,
    "pod_start": pod_start.measure,
    "turnaround": turnaround.measure,
    "many_pods": many_pods.measure,
    "idle": idle.measure,
    "sleep": sleep.measure,
    "elastic_launch": elastic_launch.measure,
    "first_step": first_step.measure,
    "attendees": attendees.measure,
    "workshop": workshop.measure,
    "elastic_recovery": elastic_recovery.measure,
}
MEASURES: dict[str, Callable[[Lab], list[Result]]] = FELT | {
    "faults": faults.measure,
    "two_jobs": two_jobs.measure,
    "parameter_server": parameter_server.measure,
    "task_service": task_service.measure,
}
