"""Runs, as a user has them: launched, followed, measured, deleted, and found again."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib.errors import BadInput, Interrupted, LaunchRejected, RunExists, RunNotFound, WaitTimeout
from trainyard_kit.cli import main

from ..patience import until

pytestmark = pytest.mark.cluster


def test_four_pods_train_the_digits_to_97_percent_on_a_node_each(launch):
    run = launch(kit.IndexedJob("trainers/digits_ddp.py", nodes=4))
    assert run.wait(timeout=240).phase == "Succeeded"
    assert run.metrics("eval").accuracy.iloc[-1] >= 0.97
    assert sorted(run.metrics("start")["rank"]) == [0, 1, 2, 3]
    assert len({pod["node"] for pod in run.pods()}) == 4
    assert run.plot().save  # drawn without an error
    assert "4 ranks" in repr(run.plot())


def test_a_launched_run_is_found_again_and_its_output_can_be_read(launch, plain, local_cluster):
    run = launch(plain("import os\nprint('I am', os.environ['NODE_RANK'])", name="found-again"))
    run.wait(timeout=120)
    again = kit.connect(local_cluster.name).run("found-again")
    assert again.status.phase == "Succeeded"
    assert again.logs(rank=1) == "I am 1"
    assert sorted(again.logs().splitlines()) == ["[rank 0] I am 0", "[rank 1] I am 1"]
    assert "found-again" in repr(local_cluster.runs())
    with pytest.raises(BadInput, match="0 to 1"):
        again.logs(rank=2)


def test_a_terminal_shows_words_programs_get_json_and_the_verdict_is_the_exit_status(
    launch, plain, local_cluster
):
    event = '{"event":"step","time":1.5,"rank":0,"world_size":1,"step":7,"loss":0.123456789}'
    run = launch(plain(f"print('\\x1b[2Jbegun')\nprint('{event}')\nraise SystemExit(3)", nodes=1))
    words = ["run", "logs", run.name, "-c", local_cluster.name]
    followed = CliRunner().invoke(main.main, [*words, "--follow"])
    assert followed.stdout.splitlines() == ["[rank 0] begun", "[rank 0] step 7  loss 0.1235"]
    assert followed.exit_code == 1
    assert "RunFailed: " in followed.stderr
    of_one = CliRunner().invoke(main.main, [*words, "--follow", "--rank", "0"])
    assert of_one.exit_code == 1
    assert of_one.stdout.splitlines() == ["begun", "rank 0  step 7  loss 0.1235"]
    read = CliRunner().invoke(main.main, [*words, "--output", "json"])
    assert read.exit_code == 0
    assert read.stdout == f"{event}\n"
    assert "[rank 0] begun" in read.stderr
    assert event in run.logs()


def test_the_traceback_of_the_rank_that_failed_first_is_shown(launch, write_trainer):
    source = """
        import os, time
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 2:
            raise ValueError("this rank is the culprit")
        dist.all_reduce(torch.ones(1))  # fails too, as rank 2 has hung up
    """
    run = launch(kit.IndexedJob(write_trainer(source), nodes=3))
    with pytest.raises(kit.RunFailed) as failed:
        run.wait(timeout=120)
    assert failed.value.rank == 2
    assert "ValueError: this rank is the culprit" in failed.value.what
    assert failed.value.detail.startswith("Traceback (most recent call last):")
    assert "trainer.py" in failed.value.detail
    assert "ChildFailedError" not in str(failed.value)


def test_a_script_of_ones_own_runs_its_words_are_shown_and_so_is_its_error(launch, write_trainer):
    source = """
        import os
        print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
        print({"event": "a dict, but no JSON"})
        raise ValueError("and this is where it ends")
    """
    run = launch(kit.IndexedJob(trainer=write_trainer(source, "my.py"), nodes=1))
    with pytest.raises(kit.RunFailed, match="ValueError: and this is where it ends") as failed:
        run.wait(timeout=120)
    assert 'raise ValueError("and this' in failed.value.detail
    assert "hello from 0 of 1\n" in run.logs(rank=0)
    assert len(run.metrics()) == 0
    assert "no steps reported yet" in repr(run.plot())


def test_a_run_that_no_node_can_hold_is_pending_and_says_why(launch, plain):
    run, words = launch(plain("pass", nodes=1, gpus=8)), "nvidia.com/gpu"
    until(lambda: "cannot be scheduled" in run.status.reason, "the scheduler to say so")
    with pytest.raises(WaitTimeout, match=f"not enough {words}"):
        run.wait(timeout=2)
    assert "can take it" in str(run.status)
    assert words in repr(run.pods())
    assert words in repr(run.logs())
    with pytest.raises(WaitTimeout, match=f"not enough {words}"):
        list(run.logs(follow=True, timeout=2))


def test_a_misspelt_field_is_refused_with_its_line_and_leaves_nothing(launch, plain, local_cluster):
    job = plain("pass").patch({"spec": {"template": {"spec": {"restartPolice": "Never"}}}})
    with pytest.raises(LaunchRejected, match=r'unknown field "spec.template.spec.restartPolice"') as refused:
        launch(job)
    line = job.manifest("Job").splitlines().index("      restartPolice: Never") + 1
    assert refused.value.detail == f"line {line}: restartPolice: Never"
    assert job.name not in local_cluster.kubectl("get jobs,services,configmaps -A")


def test_a_misspelt_field_in_a_file_is_refused_with_its_line(local_cluster, tmp_path):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\nspec:\n  contaners: []\n")
    with pytest.raises(LaunchRejected, match="contaners") as refused:
        local_cluster.apply(manifest)
    assert "line 6: contaners: []" in refused.value.detail


def test_nothing_that_is_not_the_kits_is_taken_over_or_deleted(launch, plain, local_cluster):
    local_cluster.kubectl("create configmap precious --from-literal=a=b")
    with pytest.raises(RunExists, match="precious"):
        launch(plain("pass", name="precious"))
    assert "precious" in local_cluster.kubectl("get configmaps")
    local_cluster.kubectl("delete configmap precious")


def test_a_saved_manifest_does_the_same_by_kubectl(plain, launch, local_cluster, tmp_path):
    job = plain("print('applied')", name="by-kubectl")
    saved = job.save(tmp_path / "job.yaml")
    assert "created" in local_cluster.kubectl(f"apply -f {saved}")
    run = local_cluster.run("by-kubectl")
    assert run.wait(timeout=120).phase == "Succeeded"
    assert run.logs(rank=0) == "applied"
    run.delete()
    assert "by-kubectl" not in local_cluster.kubectl("get jobs,services,configmaps,pods")
    run.delete()  # again is fine


def test_a_deleted_run_is_said_to_be_gone(launch, plain, local_cluster):
    run = launch(plain("pass", nodes=1))
    run.delete()
    assert run.status.phase == "Deleted"
    with pytest.raises(RunNotFound):
        run.wait(timeout=5)
    with pytest.raises(RunNotFound):
        local_cluster.run(run.name)
    with pytest.raises(RunNotFound):
        run.logs(rank=0)


def test_an_interrupted_wait_leaves_the_run_as_it_is(launch, plain, local_cluster):
    run = launch(plain("import time; print('here', flush=True); time.sleep(60)"))
    for line in run.logs(rank=0, follow=True):
        assert line == "here"
        break
    script = (
        "import kitlib as kit, os, signal, threading\n"
        f"run = kit.connect('{local_cluster.name}').run('{run.name}')\n"
        "threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    run.wait(timeout=50)\n"
        "except kit.KitError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("Interrupted stopped waiting for the run to end; it continues")
    assert "run.wait() waits again" in done.stdout
    assert run.status.phase == "Running"
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_cleaning_up_deletes_all_runs_and_says_that_nothing_is_left(launch, plain, local_cluster):
    launch(plain("pass"))
    assert len(kit.clean_up(local_cluster)) == 0
    assert repr(kit.clean_up(local_cluster.name)) == "nothing of the kit is left"
