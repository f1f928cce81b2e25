"""The measures, by name, in the order in which they run; those of `FELT` are what ``make bench`` takes.

Each module has ``measure(lab)``, which returns lines of the table; what a line compares is said there.
"""

from collections.abc import Callable

from bench.lab import Lab
from bench.measures import (
    async_checkpoint,
    attendees,
    busy_start,
    cifar10_cpu,
    cifar10_gpu,
    creation,
    elastic_launch,
    elastic_recovery,
    first_step,
    idle,
    images,
    kubelet,
    local_process,
    log_follow,
    many_pods,
    parameter_server,
    pod_start,
    preemption,
    records,
    scaling,
    simulated,
    task_service,
    to_97_percent,
    top,
    training_time,
    turnaround,
    two_jobs,
    widget,
)
from bench.results import Result

FELT: dict[str, Callable[[Lab], list[Result]]] = {  # what somebody in a workshop waits for
    "creation": creation.measure,
    "pod_start": pod_start.measure,
    "turnaround": turnaround.measure,
    "many_pods": many_pods.measure,
    "idle": idle.measure,
    "elastic_launch": elastic_launch.measure,
    "first_step": first_step.measure,
    "attendees": attendees.measure,
    "recovery": elastic_recovery.measure_kill,
}
MEASURES: dict[str, Callable[[Lab], list[Result]]] = FELT | {
    "top": top.measure,
    "records": records.measure,
    "kubelet": kubelet.measure,
    "busy_start": busy_start.measure,
    "images": images.measure,
    "preemption": preemption.measure,
    "log_follow": log_follow.measure,
    "widget": widget.measure,
    "simulated": simulated.measure,
    "simulated_large": simulated.measure_large,
    "elastic_recovery": elastic_recovery.measure,
    "two_jobs": two_jobs.measure,
    "training_time": training_time.measure,
    "to_97_percent": to_97_percent.measure,
    "local_process": local_process.measure,
    "cifar10_cpu": cifar10_cpu.measure,
    "scaling": scaling.measure,
    "async_checkpoint": async_checkpoint.measure,
    "parameter_server": parameter_server.measure,
    "task_service": task_service.measure,
    "cifar10_gpu": cifar10_gpu.measure,
}
