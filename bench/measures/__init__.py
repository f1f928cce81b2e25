"""The measures, by name, in the order in which they run: those that want the machine alone come first.

Each module has ``measure(lab)``, which returns lines of the table; what a line compares is said there.
"""

from collections.abc import Callable

from bench.lab import Lab
from bench.measures import (
    agent,
    busy_start,
    creation,
    first_step,
    idle,
    log_follow,
    many_pods,
    pod_start,
    simulated,
    top,
    training_time,
)
from bench.results import Result

MEASURES: dict[str, Callable[[Lab], list[Result]]] = {
    "creation": creation.measure,
    "top": top.measure,
    "idle": idle.measure,
    "agent": agent.measure,
    "pod_start": pod_start.measure,
    "busy_start": busy_start.measure,
    "log_follow": log_follow.measure,
    "many_pods": many_pods.measure,
    "simulated": simulated.measure,
    "first_step": first_step.measure,
    "training_time": training_time.measure,
}
