"""Master, servers and workers as real processes: whatever is killed, each record counts once per epoch."""

import pytest
import torch

from .parameter_server_job import LocalJob

RECORDS, MINIBATCH, EPOCHS = 600, 4, 2


def assert_each_record_counted(job, *, times, each=1.0):
    weights = torch.load(job.model_file, weights_only=True)["weights"]
    assert torch.equal(weights["first"], torch.full_like(weights["first"], -times * each))
    assert torch.equal(weights["second"], weights["first"])
    return weights


@pytest.mark.timeout(400)
def test_worker_server_and_master_are_killed_and_each_record_counts_once_per_epoch(tmp_path):
    flags = {"epochs": EPOCHS, "minibatch": MINIBATCH, "minibatches_per_task": 10, "step_seconds": 0.02}
    flags |= {"servers": 2, "workers": 2, "checkpoint_steps": 25, "silent_seconds": 1}
    with LocalJob(tmp_path, records=RECORDS, **flags) as job:
        job.start("master")
        for index in range(2):
            job.start("server", index)
            job.start("worker", index)
        job.wait_for("worker", "step", index=1, count=2)
        job.kill("worker", 1)  # in the middle of a task
        job.start("worker", 2)
        job.wait_for("server", "checkpoint", index=1)
        job.kill("server", 1)
        job.start("server", 1)
        job.wait_for("master", "restored")
        job.wait_for("worker", "step", index=2, count=2)
        job.kill("master")  # while tasks are out
        job.start("master")
        job.wait_for("master", "resume")
        assert job.join("master") == 0, job.everything()
        assert [job.join("worker", index) for index in (0, 2)] == [0, 0]
        assert [job.join("server", index) for index in (0, 1)] == [0, 0]

        steps = EPOCHS * RECORDS // MINIBATCH
        weights = assert_each_record_counted(job, times=EPOCHS)
        assert weights["batches"] == steps
        assert [job.events("server", index, "end")[-1]["version"] for index in (0, 1)] == [steps, steps]
        (end,) = job.events("master", event="end")
        assert end["records"] == EPOCHS * RECORDS
        assert {each["epoch"] for each in job.events("master", event="epoch")} == set(range(EPOCHS))
        assert job.events("server", 1, "resume")[0]["version"] >= 25
        assert {each["state"] for each in job.events("master", event="task")} == {"doing", "done", "todo"}
