"""Ranks that never meet, GPUs that idle, and modules that lie beside: from what programs print."""

import logging

import pytest

import kitlib as kit
from kitlib.causes import Facts, causes
from kitlib.causes.known_errors import known
from kitlib.causes.rules.programs import RULES
from kitlib.display.tracebacks import Line
from kitlib.errors import BadInput, plain
from kitlib.jobs.launcher import _warn_of_missing_rendezvous
from kitlib.k8s import names

START = '{{"event": "start", "time": 1.0, "rank": 0, "world_size": {}, "backend": "gloo"}}'


def kinds(*logs, gpus=0, command=(), notes=None, phase="Succeeded", labels=None):
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    items = [
        {
            "metadata": {
                "name": f"mine-{rank}",
                "labels": {"batch.kubernetes.io/job-completion-index": str(rank)},
            },
            "spec": {
                "containers": [{"name": "pytorch", "resources": limits, "command": command}],
                "nodeName": "one",
            },
            "status": {},
        }
        for rank in range(len(logs))
    ]
    lines = {rank: [Line("", text) for text in texts] for rank, texts in enumerate(logs)}
    facts = Facts(
        pods=items,
        logs=lines,
        phase=phase,
        main={"metadata": {"annotations": notes}},
        objects={"Node": [{"metadata": {"name": "one", "labels": labels}}]},
    )
    return [cause.kind for cause in causes(facts, among=RULES)]


@pytest.mark.parametrize(
    ("first_size", "second_size", "kind"),
    [
        (START.format(1), START.format(1), ["NeverMet"]),
        (
            "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1",
            "GLOBAL_RANK: 0, MEMBER: 1/1",
            ["NeverMet"],
        ),
        ("Distributed environment: NO\nNum processes: 1", "Num processes: 1", ["NeverMet"]),
        (START.format(2), START.format(2).replace('"rank": 0', '"rank": 1'), []),
        (START.format(2), START.format(2), ["NeverMet"]),
        ("GLOBAL_RANK: 0, MEMBER: 1/2", "GLOBAL_RANK: 0, MEMBER: 1/2", ["NeverMet"]),
        ("rank 0 of 2\nrank 1 of 2", "rank 0 of 2\nrank 1 of 2", ["NeverMet"]),
        ("rank 0 of 4\nrank 1 of 4", "rank 2 of 4\nrank 3 of 4\nlocal rank 0 of 2", []),
        ("[0]: nnodes=1, num_local_procs=2", "nnodes=1, num_local_procs=2", ["NeverMet"]),
        ("GLOBAL_RANK: 0, MEMBER: 1/2", "GLOBAL_RANK: 1, MEMBER: 2/2", []),
        (
            "[Gloo] Rank 0 is connected to 0 peer ranks.",
            "[Gloo] Rank 0 is connected to 0 peer ranks.",
            ["NeverMet"],
        ),
        ("[Gloo] Rank 0 is connected to 1 peer", "[Gloo] Rank 0 is connected to 1 peer", ["NeverMet"]),
        ("[Gloo] Rank 0 is connected to 1 peer ranks.", "world_size: 1", []),
        ("world size: 1", "world size: 1", ["NeverMet"]),
        (START.format(1), "loss 0.5", []),
        ("loss 0.5", "loss 0.5", []),
    ],
)
def test_ranks_that_train_alone_are_named(first_size, second_size, kind):
    assert kinds(first_size.split("\n"), second_size.split("\n")) == kind
    assert kinds(first_size.split("\n")) == []


def test_workers_of_parameter_servers_form_no_group():
    lines = [Line("", START.format(1))]
    assert not causes(Facts(logs={"master": lines, "worker-0": lines}), among=RULES)


ALONE = {names.RANKS_ALONE: "train.py: nothing in it forms a process group"}


@pytest.mark.parametrize("together", ["GLOBAL_RANK: 0, MEMBER: 1/2", "NCCL version 2.30", "world_size=2"])
def test_ranks_that_never_met_are_reported_unless_their_logs_show_it(together):
    assert kinds(["loss 0.5"], ["loss 0.5"], notes=ALONE) == ["NeverMet"]
    assert kinds(["loss 0.5", together], ["loss 0.5"], notes=ALONE) == []


def test_that_ranks_never_met_ends_no_run():
    """A rank failed, and its pod and log have gone."""
    assert kinds([], [], notes=ALONE, phase="Running") == ["NeverMet"]
    assert kinds([], [], notes=ALONE, phase="Failed") == []


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["accelerate", "launch", "train.py"], 1),
        (["sh", "-c", "pip list\naccelerate launch --num_processes=2 train.py"], 1),
        (["python", "-m", "accelerate.commands.launch", "train.py"], 1),
        (["accelerate", "launch", "--num_machines=2", "--machine_rank=$(RANK)", "train.py"], 0),
        (["accelerate", "launch", "--config_file=two.yaml", "train.py"], 0),
        (["torchrun", "train.py"], 1),
        (["sh", "-c", "cd /app\ntorchrun --standalone --nproc-per-node=2 train.py"], 1),
        (["torchrun", "--nnodes=1", "--rdzv-backend=c10d", "train.py"], 1),
        (["python", "-m", "torch.distributed.run", "--nnodes", "1", "train.py"], 1),
        (["torchrun", "--nnodes=2", "train.py"], 0),
        (["torchrun", "--nnodes=1:2", "train.py"], 0),
        (["torchrun", "--rdzv-backend=c10d", "--nnodes=$(N)", "train.py"], 0),
        (["bash", "-c", "pip install deepspeed && deepspeed --num_gpus=2 train.py"], 1),
        (["bash", "-c", "pip install deepspeed && torchrun --nnodes=2 train.py"], 0),
        (["deepspeed", "--hostfile=/etc/hosts.txt", "train.py"], 0),
        (["horovodrun", "-np", "2", "python", "train.py"], 1),
        (["mpirun", "-np", "4", "-hostfile", "/etc/mpi/hostfile", "python", "train.py"], 0),
        (["fabric", "run", "--devices=2", "train.py"], 1),
    ],
)
def test_a_command_that_starts_a_world_in_each_pod_is_named(command, kind):
    assert kinds(["loss 0.5"], ["loss 0.5"], command=command) == ["NeverMet"] * kind
    assert kinds(["loss 0.5"], command=command) == []


def test_gpus_that_may_idle_are_not_named():
    line = "Using device: cpu"
    assert kinds([line], gpus=1, notes={names.IDLE_GPUS: "fail"}) == ["GpusUnused"]
    assert kinds([line], gpus=1, notes={names.IDLE_GPUS: "allow"}) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found 11040).", 1),
        ("RuntimeError: Found no NVIDIA driver on your system.", 1),
        ("AssertionError: Torch not compiled with CUDA enabled", 1),
        ("GPU available: False, used: False", 1),
        ("Using device: cpu", 1),
        ("this pod has GPUs, but torch finds no CUDA device: training on CPU with gloo", 1),
        ("Using device: cuda", 0),
        ("loss 0.5 on the cpus", 0),
    ],
)
def test_gpus_that_are_not_used_are_named_with_the_line_that_says_why(line, kind):
    assert kinds([line], gpus=2) == ["GpusUnused"] * kind
    assert kinds([line]) == []
    assert kinds(["device: cuda:0", line], gpus=1) == []
    assert kinds([line], gpus=1, labels={names.DECLARED_GPUS: "true"}) == []
    assert kinds([*["step"] * 1000, line], gpus=1) == ["GpusUnused"] * kind


@pytest.mark.parametrize("place", [".", "..", "lib"])
def test_a_missing_module_that_lies_beside_or_above_is_named_with_its_argument(place, tmp_path, monkeypatch):
    here = tmp_path / "project" / "tools"
    here.mkdir(parents=True)
    (here / place).mkdir(exist_ok=True)
    (here / place / "mylib.py").touch()
    monkeypatch.chdir(here)
    log = {0: [Line("", "ModuleNotFoundError: No module named 'mylib.model'")]}
    (cause,) = causes(Facts(logs=log, phase="Failed"), among=RULES)
    assert f'root="{(here / place).resolve()}"' in cause.fix
    assert (
        causes(Facts(logs={0: [Line("", "ModuleNotFoundError: No module named 'torhc'")]}), among=RULES) == []
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('alone')", "nothing in it forms a process group"),
        ("import torch\nmodel = torch.nn.Linear(1, 1)", "nothing in it forms a process group"),
        ("import lightning as L\nL.Trainer(devices=1).fit(m)", "Trainer(num_nodes=2)"),
        ("import lightning as L\nL.Trainer(devices=2).fit(m)", ""),  # one of each node, which torchrun starts
        ("import lightning as L\nL.Trainer(num_nodes=2).fit(m)", ""),
        ("import lightning as L\nos.environ['LT_NUM_NODES'] = '2'\nL.Fabric().setup(m)", ""),
        ("import torch.distributed as dist\ndist.init_process_group()", ""),
        ("from accelerate import Accelerator\nAccelerator()", ""),
        ("from accelerate import notebook_launcher\nnotebook_launcher(f)", "on localhost"),
        ("import horovod.torch as hvd\nhvd.init()", "horovodrun"),
        ("import jax\njax.grad(f)", "jax.distributed.initialize"),
        ("import jax\njax.distributed.initialize()", ""),
        ("import torch\nmodel.eval()\nwith torch.no_grad(): model(x)", ""),
        ("mp.spawn(f)\ndist.init_process_group(init_method='tcp://localhost:1')", "on localhost"),
        ("os.environ.setdefault('MASTER_ADDR', 'localhost')\ndist.init_process_group()", ""),
        ("import helper\nmp.spawn(f)\ndist.init_process_group()", ""),  # dlrm, whose spawn is a word
    ],
)
def test_a_program_whose_ranks_will_not_meet_is_named_before_the_launch(source, words, tmp_path, caplog):
    (tmp_path / "helper.py").write_text("os.environ['MASTER_ADDR'] = '127.0.0.1'")
    (tmp_path / "train.py").write_text(source)
    with caplog.at_level(logging.WARNING):
        _warn_of_missing_rendezvous(kit.IndexedJob(tmp_path / "train.py", nodes=2))
        assert (words in caplog.text) and bool(caplog.text) == bool(words)
        caplog.clear()
        assert words in _warn_of_missing_rendezvous(kit.IndexedJob(tmp_path / "train.py", nodes=2))
        caplog.clear()
        assert not _warn_of_missing_rendezvous(kit.IndexedJob(tmp_path / "train.py", nodes=1))
    assert not caplog.text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(f)\ndist.init_process_group('gloo')", "NODE_RANK"),
        ("os.environ['MASTER_ADDR'] = 'localhost'\ndist.init_process_group('gloo')", "on localhost"),
        ("dist.TCPStore('127.0.0.1', 1)\ndist.init_process_group()", "on localhost"),
        ("rank = int(os.environ['NODE_RANK'])\ndist.init_process_group('gloo', rank=rank)", ""),
    ],
)
def test_ranks_that_a_program_starts_itself_must_know_their_pod(source, words, tmp_path):
    (tmp_path / "train.py").write_text(source)
    alone = _warn_of_missing_rendezvous(kit.IndexedJob(tmp_path / "train.py", nodes=2, launcher="python"))
    assert words in alone and bool(alone) == bool(words)
    assert kinds(["world size: 2"], ["world size: 2"], notes={names.RANKS_ALONE: alone}) == (
        ["NeverMet"] if "localhost" in words else []
    )
    assert not _warn_of_missing_rendezvous(kit.IndexedJob(tmp_path / "train.py", nodes=1, launcher="python"))


def test_ranks_that_only_evaluate_need_not_meet():
    assert kinds(["world size: 1"], ["world size: 1"], notes={names.RANKS_ALONE: names.EVALUATES}) == []


def test_a_way_with_idle_gpus_that_there_is_not_is_refused():
    with pytest.raises(BadInput, match="idle_gpus='ignore'"):
        kit.launch("train.py", idle_gpus="ignore")


@pytest.mark.parametrize(
    ("path", "argument"),
    [
        ("data/x.csv", '["data"]'),
        ("./data", '["data"]'),
        (".env", '[".env"]'),
        ("../x/y", '{"/x": volume}, after volume.upload("../x/y")'),
        ("../x/y/z", '{"/x": volume}, after volume.upload("../x/y")'),
        ("/data/x", '{"/data": volume}, after volume.upload("/data/x")'),
        ("/home/me/sets/a/x.csv", '{"/home/me/sets": volume}, after volume.upload("/home/me/sets/a")'),
        ("/x.csv", '{"/data": volume}, after volume.upload("x.csv")'),
        ("/tmp/x.csv", '{"/data": volume}, after volume.upload("x.csv")'),  # noqa: S108: of a pod
        ("./../x/y", '{"/x": volume}, after volume.upload("./../x/y")'),
        ("../../x/y", "[…]"),
    ],
)
def test_the_argument_that_carries_a_missing_file_is_named(path, argument):
    text = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    assert plain(known(text).fix).startswith((f"files={argument} beside the program", f"volumes={argument}"))
