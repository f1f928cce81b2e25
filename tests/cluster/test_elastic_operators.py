"""Elastic training by operators, with torch: preempted and back, scaled by hand, scaled by an autoscaler."""

import pytest

import kitlib as kit
from kitlib.k8s.wait import wait
from kitlib.k8s.watch import WatchSpec, watch_objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

TRAINER = "trainers/digits_elastic.py"
IMAGES = 1437  # of the digits, to train on
SMALL = {"global_batch_size": 64, "log_every": 1}


def until(run, what, condition):
    """Wait until a condition holds for the newest step that a run has told of; return them all."""
    records = {}

    def steps():
        for _ in watch_objects(run.kube, WatchSpec("Pod")):
            for record in run.metrics("step").to_dict("records"):
                records.setdefault(int(record["step"]), record)  # pods that are deleted tell no more
            yield records

    return wait(
        steps(),
        until=lambda records: bool(records) and condition(records[max(records)]),
        timeout=240,
        what=what,
        about=run.name,
        resume="run the test again",
        describe=lambda records: str(records[max(records)] if records else run.status),
    )


def check_whole(steps, *, epochs):
    """See that each image was trained on once in each epoch, and that the loss has fallen."""
    assert sorted(steps) == list(range(len(steps)))
    for epoch in range(epochs):
        assert sum(event["samples"] for event in steps.values() if event["epoch"] == epoch) == IMAGES
    first, last = (sum(steps[index]["loss"] for index in some) for some in (range(10), sorted(steps)[-10:]))
    assert last < first / 2


def test_a_pytorch_job_is_scaled_by_hand_and_then_by_an_autoscaler(launch, local_cluster):
    kit.install("training-operator", cluster=local_cluster)
    try:
        args = SMALL | {"epochs": 1000}  # as quick as it can: a CPU above the target
        elastic = {"nodes": 1, "min_nodes": 1, "max_nodes": 3, "cpu": "300m", "args": args}
        target = {"type": "Utilization", "averageUtilization": 50}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
        job = kit.PyTorchJob(TRAINER, **elastic)
        run = launch(job.patch({"spec": {"elasticPolicy": {"metrics": [metric]}}}))
        until(run, "the autoscaler's second worker", lambda step: step["world_size"] >= 2)
        (scaler,) = local_cluster.kube.get_all("HorizontalPodAutoscaler", api_version="autoscaling/v2")
        assert scaler["spec"]["scaleTargetRef"]["name"] == run.name
        assert "SuccessfulRescale" in local_cluster.kubectl("get events")
        run.delete()

        elastic["args"] = SMALL | {"epochs": 60, "step_seconds": 0.05}
        run = launch(kit.PyTorchJob(TRAINER, **elastic))
        steps = until(run, "a worker", lambda step: step["world_size"] == 1)
        run.scale(2)
        steps |= until(run, "two workers", lambda step: step["world_size"] == 2)
        local_cluster.kubectl(f"delete pod {run.name}-worker-0 --wait=false")
        run.wait(timeout=300)
        steps |= until(run, "the end", lambda step: True)
        check_whole(steps, epochs=60)
        run.delete()
        assert run.name not in local_cluster.kubectl("get pods,services,configmaps,pytorchjobs")
    finally:
        kit.uninstall("training-operator", cluster=local_cluster)
