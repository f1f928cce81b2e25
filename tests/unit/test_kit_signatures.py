"""A wrong argument is named with the one that was meant, and Shift-Tab shows all arguments."""

import functools
import inspect
import re
from pathlib import Path
from typing import get_type_hints

import pytest

import kitlib as kit
from kitlib.errors import CODE, BadInput
from kitlib.jobs.base import JobArguments, TrainingJob
from kitlib.jobs.launcher import LaunchArguments

JOBS = (kit.IndexedJob, kit.TorchElastic, kit.PyTorchJob, kit.TrainJob, kit.ElasticJob)
FUNCTIONS = [getattr(kit, name) for name in kit.__all__ if inspect.isfunction(getattr(kit, name))]
OPEN = {"check", "create_cluster", "preflight"}  # the provider's options, or the learner's names


@pytest.mark.parametrize(
    ("call", "wrong", "near"),
    [
        *((lambda job=job: job("x.py", node=4), "node", "nodes=4") for job in (kit.launch, *JOBS)),
        *((lambda job=job: job("x.py", gpu=1), "gpu", "gpus=1") for job in (kit.launch, *JOBS)),
        (lambda: kit.launch("x.py", num_nodes=4), "num_nodes", "nodes=4"),
        (lambda: kit.launch("x.py", nnodes=4), "nnodes", "nodes=4"),
        (lambda: kit.launch("x.py", replicas=4), "replicas", "nodes=4"),
        (lambda: kit.launch("x.py", replaced=True), "replaced", "replace=True"),
        (lambda: kit.launch("x.py", epochs=3), "epochs", "args={'epochs': 3}"),
        (lambda: kit.TorchElastic("x.py", max_node=3), "max_node", "max_nodes=3"),
        (lambda: kit.TorchElastic("x.py", rendevouz="etcd"), "rendevouz", "rendezvous='etcd'"),
        (lambda: kit.torchrun("x.py", nproc_per_node=2), "nproc_per_node", "processes_per_node=2"),
        (lambda: kit.create_cluster(node=2), "node", "nodes=2"),
        (lambda: kit.create_cluster("local", prt=2), "prt", "port=2"),
        (lambda: kit.create_cluster("existing", namspace="a"), "namspace", "namespace='a'"),
        (lambda: kit.connect("a", contxt="b"), "contxt", "context='b'"),
        (lambda: kit.prepare_dataset("mnist", volum=1), "volum", "volume=1"),
        (lambda: kit.Run(None, "x").logs(ranks=1), "ranks", "rank=1"),
        (lambda: kit.Run(None, "x").wait(time_out=1), "time_out", "timeout=1"),
        (lambda: kit.clusters.LocalCluster("x").create_volume("a", sise="1Gi"), "sise", "size='1Gi'"),
        (lambda: kit.Volume(None, "x").upload("a", into="b"), "into", "to='b'"),
        (lambda: kit.ParameterServer("x.py", data="/a/b", worker=2), "worker", "workers=2"),
        (lambda: kit.install("trainer", clusters="a"), "clusters", "cluster='a'"),
    ],
)
def test_a_wrong_argument_names_the_near_one(call, wrong, near):
    with pytest.raises(BadInput, match=rf"\b{wrong}\b") as error:
        call()
    assert near in error.value.fix


@pytest.mark.parametrize("call", [lambda: kit.install(), lambda: kit.create_cluster("local", "lab", 4)])
def test_arguments_that_are_missing_or_too_many_are_refused_with_the_signature(call):
    with pytest.raises(BadInput, match="do not fit"):
        call()


def test_a_type_error_from_within_a_call_stays_as_it_is():
    with pytest.raises(TypeError) as error:
        kit.speed_up(3)
    assert not isinstance(error.value, BadInput)


@pytest.mark.parametrize(
    "call", [*FUNCTIONS, *JOBS, kit.ParameterServer, kit.DatasetJob], ids=lambda call: call.__name__
)
def test_shift_tab_shows_the_real_arguments(call):
    kinds = {parameter.kind for parameter in inspect.signature(call).parameters.values()}
    assert (inspect.Parameter.VAR_KEYWORD in kinds) == (call.__name__ in OPEN)


def test_forwarded_arguments_have_the_types_of_the_constructor():
    names = set(inspect.signature(TrainingJob).parameters) - {"trainer", "nodes"}
    assert set(JobArguments.__annotations__) == names
    assert set(get_type_hints(LaunchArguments)) == names | {"nodes", "launcher"}
    for job in JOBS:
        assert names <= set(inspect.signature(job).parameters)


ROOTS = {
    "kit": kit,
    "cluster": kit.clusters.LocalCluster,
    "run": kit.Run,
    "volume": kit.Volume,
    "job": JOBS[1],
}
CALL = re.compile(r"\b((?:kit|cluster|run|volume|job)(?:\.\w+)+)\(([^()]*)")


def test_calls_that_errors_and_causes_propose_and_their_arguments_exist():
    packages = [Path(kit.__file__).parents[1] / name for name in ("kitlib", "trainyard_kit")]
    files = [
        path for package in packages for ending in ("py", "toml") for path in package.rglob(f"*.{ending}")
    ]
    codes = [code for path in files for code in CODE.findall(path.read_text(encoding="utf-8"))]
    calls = [call for code in codes for call in CALL.findall(code)]
    assert ("kit.build_image", "dockerfile=…") in calls
    for name, arguments in calls:
        root, *names = name.split(".")
        parameters = inspect.signature(functools.reduce(getattr, names, ROOTS[root])).parameters
        words = set(re.findall(r"\b(\w+)=", arguments)) - {"epochs"}  # of the program, in args=
        assert names[-1] in OPEN or words <= set(parameters), f"{name}({arguments})"
