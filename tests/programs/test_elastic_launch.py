"""The elastic launcher: what it accepts, what it starts again and when it gives up, and with which words."""

import os
import subprocess
from pathlib import Path

import elastic_launch as launcher
import elastic_rendezvous
import pytest

from .forked import TORCHRUN, TRAINERS, Program, free_port
from .release_server import Release, serving
from .small_data import of_kind, read_events

LAUNCHER = TRAINERS / "elastic_launch.py"


def launch(trainer: str, folder: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    path, errors = folder / "program.py", folder / "errors"
    path.write_text(trainer)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    program = Program(LAUNCHER, *flags, path, environment=clean | environment, errors=errors)
    output, _ = program.communicate(timeout=240)
    return subprocess.CompletedProcess([LAUNCHER], program.returncode, output, errors.read_text())


def test_flags_of_torchrun_are_taken_in_both_spellings_and_from_its_variables(monkeypatch):
    flags = ["--nnodes", "2:4", "--rdzv-endpoint", "store:2379", "--rdzv_backend=etcd", "--nproc-per-node=2"]
    options = launcher.parse([*flags, "--rdzv_conf=last_call_timeout=7", str(LAUNCHER), "--epochs", "3"])
    assert options.arguments == ["--epochs", "3"]
    described = launcher.describe(options)
    assert (described.min_nodes, described.max_nodes) == (4, 8)  # processes
    assert (described.endpoint, described.timeout("last_call_timeout")) == ("store:2379", 7)

    monkeypatch.setenv("PET_NNODES", "1:3")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "other:29400")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    options = launcher.parse([str(LAUNCHER)])
    assert (launcher.describe(options).max_nodes, options.max_restarts) == (3, 5)


def test_a_trainer_without_an_endpoint_is_alone():
    assert launcher.describe(launcher.parse([str(LAUNCHER)])) is None


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--nnodes=4:2", "--rdzv_endpoint=a:1"], "the smallest number of nodes (4) exceeds the largest (2)"),
        (["--nnodes=0:2", "--rdzv_endpoint=a:1"], "must be an integer of at least 1"),
        (["--nnodes=1:4"], "--rdzv_endpoint HOST:PORT"),
        (["--rdzv_backend=zeus"], "choose one of c10d, etcd, etcd-v2"),
        (["--max_restarts=-1"], "must be an integer of at least 0"),
    ],
)
def test_flags_that_cannot_work_are_refused_with_the_reason(capsys, flags, word):
    with pytest.raises(SystemExit, match="2"):
        launcher.parse([*flags, str(LAUNCHER)])
    assert word in capsys.readouterr().err


def test_a_failing_trainer_is_restarted_up_to_its_limit(tmp_path):
    done = launch(
        "import os; print(os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True); raise SystemExit(9)",
        tmp_path,
        "--max_restarts=2",
    )
    assert done.stdout.split() == ["0", "1", "2"]
    assert done.returncode == 9
    assert "giving up: worker 0" in done.stderr.splitlines()[-1]
    assert "exited with code 9" in done.stderr.splitlines()[-1]


def test_a_worker_killed_in_a_loop_is_given_up(tmp_path):
    done = launch(
        "import os, signal; print('here', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
        tmp_path,
        PET_MAX_RESTARTS="1",
    )
    assert done.stdout.split() == ["here", "here"]
    assert done.returncode == 137
    assert "was killed by SIGKILL, and had been restarted 1 times within 60 s" in done.stderr


def test_a_name_that_does_not_resolve_is_said_and_not_tried_again(tmp_path):
    trainer = "import elastic, torch\nelastic.run(print, elastic.State(steps_per_epoch=1))"
    flags = ["--nnodes=1:2", "--rdzv_endpoint=no-such-store.invalid:29400", "--rdzv_conf=connect_timeout=1"]
    done = launch(trainer, tmp_path, *flags)
    assert done.returncode == 78
    assert "'no-such-store.invalid' of the rendezvous endpoint does not resolve" in done.stderr
    assert "restarting it" not in done.stderr


def test_an_etcd_without_the_v2_api_is_no_store_for_a_retry():
    words = r"\(3.6.1\) does not serve the v2 API \(404 for /v2/keys/\).*--enable-v2, or --rdzv_backend c10d"
    with serving(Release({"/version": b'{"etcdserver":"3.6.1"}'})) as url:
        settings = elastic_rendezvous.RendezvousSettings("run", "etcd", url.removeprefix("http://"), 1, 2)
        with pytest.raises(elastic_rendezvous.StoreError, match=words):
            elastic_rendezvous.ElasticRendezvous(settings)


def test_two_workers_on_a_machine_that_is_the_endpoint_need_no_other_store(tmp_path):
    trainer = """
import torch, elastic
state = elastic.State(steps_per_epoch=1)
def train(worker):
    worker.emit("sum", value=worker.all_reduce(torch.tensor([worker.rank + 1.0])).item())
elastic.run(train, state)
"""
    endpoint = f"--rdzv_endpoint=127.0.0.1:{free_port()}"
    done = launch(trainer, tmp_path, "--nproc_per_node=2", "--nnodes=1:1", endpoint)
    assert done.returncode == 0, done.stderr
    events = read_events(done.stdout.splitlines())
    assert [event["value"] for event in of_kind(events, "sum")] == [3.0, 3.0]


def test_a_trainer_gets_the_arguments_that_torchrun_gives_it(tmp_path):
    say = tmp_path / "say.py"
    say.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    words = ["$(HOME)", "$$", "$HOME", "${local_rank}", "", "--", "--nnodes=3", "a\nb", "'\"", "-m", "é", "$"]
    torchrun = Program(TORCHRUN, "--standalone", str(say), *words, environment=os.environ)
    by_kit = Program(LAUNCHER, str(say), *words, environment=os.environ)
    assert by_kit.communicate()[0] == torchrun.communicate()[0] != ""
