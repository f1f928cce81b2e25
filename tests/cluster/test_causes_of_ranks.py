"""Each cause of `causes/ranks.yaml`, made to happen in ranks of a real cluster and named by ``run.why()``."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

import kitlib as kit
from kitlib.errors import RunFailed, plain

from ..patience import until
from ..rows import slow

HERE = Path(__file__).parent
ROWS = yaml.safe_load((HERE / "causes" / "ranks.yaml").read_text())
PROGRAM = HERE / "failing_ranks.py"
HANG_SECONDS = 4


def changed(job, row):
    """Change what the row has: options of torchrun, the size of /dev/shm."""
    container = {"name": "pytorch"}
    volumes = []
    if "shm" in row:
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
        volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": row["shm"]}}]
    if flags := row.get("flags"):
        (main,) = (item for item in job.objects if item["kind"] == "Job")
        (trainer_container,) = main["spec"]["template"]["spec"]["containers"]
        names = [(word.partition("=")[0], word) for word in trainer_container["command"]]
        container["command"] = [f"{name}={flags[name]}" if name in flags else word for name, word in names]
    pod = {"containers": [container]} | ({"volumes": volumes} if volumes else {})
    return job.patch({"spec": {"template": {"spec": pod}}})


def launch(cluster, way, row=None, **more):
    """Launch the program; in a pod of few cores a hog of memory takes long."""
    args = ["kill", "extra"] if way == "arguments" else [way]
    name = f"{way}-{secrets.token_hex(2)}"
    job = kit.IndexedJob(PROGRAM, nodes=2, args=args, name=name, memory="700Mi", cpu="0.3", **more)
    return kit.launch(changed(job, row or {}), cluster=cluster)


def check(cause, row, rank=1):
    assert cause is not None
    assert cause.kind == row["kind"], cause
    assert cause.who == row["who"].replace("rank 1", f"rank {rank}")
    assert row["says"] in f"{cause.line} {cause.detail}"
    assert row["do"].partition(",")[0].replace("=1", f"={rank}") in plain(cause.fix)


@pytest.fixture(scope="module")
def diagnoses(local_cluster):
    """The diagnosis of each row, by its name; three runs at a time."""

    def diagnose(row):
        run = launch(local_cluster, row["name"], row)
        if row.get("silent"):  # its ranks never come to a step
            diagnosis = until(
                lambda: (
                    (why := run.why(hang_after=HANG_SECONDS)).first and why.first.kind == row["kind"] and why
                )
            )
        elif row.get("succeeds"):
            run.wait(timeout=300)
            diagnosis = run.why()
        elif row.get("hangs"):
            for _ in run.logs(follow=True).head(8):  # until rank 1 has come to its end
                pass
            diagnosis = run.why(hang_after=HANG_SECONDS)
            while not diagnosis and run.status.running == 2:
                diagnosis = run.why(hang_after=HANG_SECONDS)
        else:
            with pytest.raises(RunFailed) as failed:
                run.wait(timeout=300)
            diagnosis = run.why()
            assert diagnosis.first is None or failed.value.what == diagnosis.first.line
        run.delete()
        return row["name"], diagnosis

    with ThreadPoolExecutor(3) as pool:
        return dict(pool.map(diagnose, ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_cause_is_named(diagnoses, row):
    check(diagnoses[row["name"]].first, row)


@pytest.mark.parametrize("way", ["kill", *slow("message")])
def test_of_two_ranks_in_each_pod_the_one_that_ended_is_named(local_cluster, way):
    row = next(row for row in ROWS if row["name"] == way)
    run = launch(local_cluster, way, processes_per_node=2)
    with pytest.raises(RunFailed) as failed:
        run.wait(timeout=300)
    assert failed.value.rank == 3
    assert (row["says"] if way == "message" else "SIGKILL") in str(failed.value)
    run.delete()


def test_a_run_that_is_well_has_no_cause(local_cluster):
    run = launch(local_cluster, "well")
    for _ in run.logs(follow=True).head(8):
        pass
    assert not run.why()
    assert repr(run.why()) == "nothing is wrong: Running: 2 of 2 pods"
    run.delete()
