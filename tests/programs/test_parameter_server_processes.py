"""Master, servers and workers as real processes: whatever is killed, each record counts once per epoch."""

import pytest
import torch
from parameter_server import master

from .forked import DEADLINE, free_port
from .parameter_server_job import COUNTING, LocalJob

RECORDS, MINIBATCH, EPOCHS = 400, 4, 2


@pytest.mark.timeout(400)
def task_states(job):
    return {event["state"] for event in job.events("task", "master")}


def test_worker_server_and_master_are_killed_and_each_record_counts_once_per_epoch(tmp_path):
    flags = {"epochs": EPOCHS, "minibatch": MINIBATCH, "minibatches_per_task": 10, "step_seconds": 0.02}
    flags |= {"servers": 2, "workers": 2, "checkpoint_steps": 25, "silent_seconds": 1}
    with LocalJob(tmp_path, records=RECORDS, **flags) as job:
        job.start("master", "server", "worker", "server-1", "worker-1")
        job.wait_for_events("step", "worker-1", 2)
        job.kill("worker-1")  # in the middle of a task
        job.start("worker-2")
        job.wait_for_events("checkpoint", "server-1")
        job.kill("server-1")
        job.start("server-1")
        job.wait_for_events("restored", "master")
        job.wait_for_events("step", "worker-2", 2)
        job.wait_for(lambda: "todo" in task_states(job), "the return of the killed worker's task")
        job.kill("master")  # while tasks are out
        job.start("master")
        job.wait_for_events("resume", "master")
        assert {job.join(name) for name in job.processes} == {0}, job.everything()

        steps = EPOCHS * RECORDS // MINIBATCH
        weights = torch.load(job.model_file, weights_only=True)["weights"]
        assert torch.equal(weights["first"], torch.full_like(weights["first"], -EPOCHS))
        assert torch.equal(weights["second"], weights["first"])
        assert weights["batches"] == steps
        assert [job.events("end", name)[-1]["version"] for name in ("server", "server-1")] == [steps, steps]
        (end,) = job.events("end", "master")
        assert end["records"] == EPOCHS * RECORDS
        assert {event["epoch"] for event in job.events("epoch", "master")} == set(range(EPOCHS))
        assert job.events("resume", "server-1")[0]["version"] >= 25
        assert task_states(job) == {"doing", "done", "todo"}


def test_a_server_averages_the_gradients_it_waits_for_and_the_rest(tmp_path):
    flags = {"epochs": 1, "minibatch": 4, "minibatches_per_task": 4, "grads_to_wait": 2, "workers": 2}
    with LocalJob(tmp_path, records=60, lr=1.0, **flags) as job:  # 15 minibatches: one remains
        job.start("master", "server", "worker", "worker-1")
        assert job.join("master") == 0, job.everything()
        weights = torch.load(job.model_file, weights_only=True)["weights"]
        halves = [int((weights["first"] == -rate).sum()) for rate in (0.5, 1.0)]
        assert halves == [56, 4]  # means of two, and one by itself
        assert weights["batches"] == 15
        assert job.join("server") == 0
        assert job.events("end", "server")[0]["version"] == 8


def test_a_model_file_that_raises_fails_the_job_with_its_traceback(tmp_path):
    model = COUNTING.format(records=60, lr=1.0).replace("return outputs.sum()", "return outputs.summ()")
    with LocalJob(tmp_path, records=60, model=model, workers=1) as job:
        job.start("master", "server", "worker")
        assert job.join("worker") == 1
        assert job.join("master") == 1
        for program in ("master", "worker"):
            (failed,) = job.events("failed", program)
            assert 'model.py", line' in failed["reason"]
            assert "has no attribute 'summ'" in failed["reason"]
            assert "replica.py" not in failed["reason"]
        job.start("master")
        assert job.join("master") == 1  # it stays failed, and says again why
        assert "summ" in job.events("failed", "master")[-1]["reason"]


def test_of_two_masters_the_newer_goes_on_and_the_older_ends(tmp_path):
    with LocalJob(tmp_path, records=60, workers=1) as job:
        first = job.start("master")
        job.wait_for_events("start", "master")
        job.flags = [flag for flag in job.flags if not flag.startswith("--port")]
        job.flags.append(f"--port={free_port()}")
        second = job.start("master-1")
        first.join(DEADLINE)
        assert first.exitcode == 3
        assert "begun state 2" in job.events("superseded", "master")[0]["reason"]
        assert second.is_alive()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("servers", "--servers 0: a job needs at least 1; servers hold the model"),
        ("workers", "--workers 0: a job needs at least 1; workers compute the gradients"),
        ("grads_to_wait", "--grads-to-wait 0"),
    ],
)
def test_a_job_without_servers_or_workers_is_refused(flag, words):
    flags = {"trainer": __file__, "records": "r.npy", "state-dir": "s", flag.replace("_", "-"): 0}
    with pytest.raises(SystemExit, match=words):
        master.main([f"--{name}={value}" for name, value in flags.items()])
