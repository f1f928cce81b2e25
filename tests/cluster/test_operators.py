"""Operators, as a user has them: installed, training, removed again.

The first time on a machine their programs are built, which takes a minute or two each.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

import kitlib as kit
from kitlib.errors import KitError, LaunchRejected
from kitlib.operators.catalog import OPERATORS
from kitlib.operators.install import _apply, _gather

from ..node.clusters import eventually

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "trainers" / "digits_ddp.py"
FILES = f"--from-file=main.py={DIGITS} --from-file={DIGITS.with_name('digits.csv.gz')}"
WHOLE_NODE = ROOT / "manifests" / "pytorch-job" / "whole-node.yaml"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

# Ranks that meet by torchrun and need no torch beyond it: each says where it is and what it was told.
TRAINER = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {int(total)}\\n")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def training_operator(local_cluster):
    yield kit.install("training-operator", cluster=local_cluster)
    kit.uninstall("training-operator", cluster=local_cluster)


def trainer_lines(run):
    """Return the lines of the trainer: libraries on a busy machine have warnings to add."""
    lines = [line.partition("] ")[2] for line in run.logs().splitlines()]
    return sorted(line for line in lines if line.startswith("rank "))


def test_a_kind_that_is_not_there_names_the_operator_that_brings_it(launch, write_trainer):
    job = kit.PyTorchJob(write_trainer(TRAINER), nodes=2)
    with pytest.raises(LaunchRejected, match=r'(?s)no kind PyTorchJob.*kit.install\("training-operator"'):
        launch(job)


def test_operators_that_a_local_cluster_has_are_not_installed(local_cluster):
    assert not len(kit.install("metrics-server", cluster=local_cluster))
    assert not len(kit.install("nvidia-device-plugin", cluster=local_cluster))


def test_an_operators_pods_are_pulled_and_tolerate_as_the_kits_are(local_cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINYARD_REGISTRY", "registry.example/hub quay.io=registry.example/quay")
    monkeypatch.setenv("TRAINYARD_PULL_SECRET", "mirror")
    monkeypatch.setenv("TRAINYARD_TOLERATIONS", "dedicated=training:NoSchedule")
    kubectl, applied, (part,) = local_cluster.kubectl, [], OPERATORS["elastic-job"]

    def record(command):
        if command.startswith("apply"):
            return applied.extend(yaml.safe_load_all(Path(command.split()[-1]).read_text()))
        return kubectl(command)

    monkeypatch.setattr(local_cluster, "kubectl", record)
    secret = {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": '{"auths": {}}'}}
    local_cluster.kube.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mirror"}, **secret}
    )
    try:
        _gather(local_cluster, part, tmp_path / "parts", print)
        _apply(local_cluster, tmp_path / "parts", part)
    finally:
        local_cluster.kube.delete("Secret", "mirror")
    pods = [
        item["spec"]["template"]["spec"] for item in applied if item["kind"] in ("Deployment", "StatefulSet")
    ]
    pulled = {container["image"] for pod in pods for container in pod["containers"]}
    assert pulled == {
        "registry.example/hub/library/python:3.12-slim", "registry.example/quay/coreos/etcd:v3.4.13"
    }  # fmt: skip
    assert all(pod["imagePullSecrets"] == [{"name": "mirror"}] for pod in pods)
    assert all(pod["tolerations"][-1]["key"] == "dedicated" for pod in pods)
    (brought,) = (item for item in applied if item["kind"] == "ConfigMap")
    assert "image: registry.example/quay/coreos/etcd" in brought["data"]["etcd.yaml"]
    (copied,) = (item["metadata"] for item in applied if item["kind"] == "Secret")
    assert copied["namespace"] == "elastic-job" and copied["labels"]["trainyard/operator"] == "elastic-job"


@pytest.mark.slow
def test_a_pytorch_job_trains_with_two_processes_in_each_of_its_pods(
    launch, write_trainer, training_operator, local_cluster
):
    assert training_operator[0]["runs as"] == "Deployment/training-operator"
    run = launch(kit.PyTorchJob(write_trainer(TRAINER), nodes=2, processes_per_node=2))
    assert run.wait(timeout=240).succeeded == 2
    written = trainer_lines(run)
    assert written == [f"rank {rank} of 4 sum 4" for rank in range(4)]
    pods = list(run.pods())
    assert [pod["rank"] for pod in pods] == [0, 1]
    assert [pod["pod"] for pod in pods] == [f"{run.name}-master-0", f"{run.name}-worker-0"]
    assert len({pod["node"] for pod in pods}) == 2
    assert run.name in repr(local_cluster.runs())
    assert local_cluster.run(run.name).kind == "PyTorchJob"
    run.delete()
    assert run.name not in local_cluster.kubectl("get pytorchjobs,services,configmaps,pods")


@pytest.fixture
def node_with_two_gpus(state_home):
    with kit.create_cluster("local", name="two-gpus", nodes=1, gpus=2) as cluster:
        kit.install("training-operator", cluster=cluster)
        yield cluster


@pytest.mark.slow
def test_a_pod_that_holds_all_gpus_of_a_node_keeps_another_waiting(node_with_two_gpus, tmp_path):
    kubectl = node_with_two_gpus.kubectl
    kubectl(f"create configmap torchrun-gpu {FILES}")
    (tmp_path / "job.yaml").write_text(WHOLE_NODE.read_text().replace("<IMAGE>", "trainyard/trainer"))
    kubectl(f"create -f {tmp_path / 'job.yaml'}")
    kubectl("wait pod/torchrun-gpu-master-0 --for=create --timeout=60s")
    kubectl("wait pod/torchrun-gpu-master-0 --for=condition=Ready --timeout=60s")
    allocated = kubectl("describe node node-0").partition("Allocated resources:")[2]
    assert re.search(r"nvidia.com/gpu +2 +2$", allocated, re.M), allocated
    limits = {"name": "another", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = json.dumps({"spec": {"containers": [limits | {"command": ["true"]}]}})
    kubectl(f"run another --image=busybox --restart=Never --overrides='{pod}'")
    reason = 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}'
    kubectl(f"wait pod/another --for='{reason}=Unschedulable' --timeout=60s")
    eventually(lambda: "Insufficient nvidia.com/gpu" in kubectl("events --for pod/another"))
    kubectl("delete pytorchjob torchrun-gpu")
    kubectl("wait pod/another --for=jsonpath={.status.phase}=Succeeded --timeout=60s")


DEPLOYMENT = {
    "spec": {
        "replicas": 3,
        "template": {
            "spec": {"containers": [{"name": "mine", "image": "mine:1", "command": ["torchrun", "a.py"]}]}
        },
    }
}


def pytorch_job(
    *, name="pytorch", policy="Never", workers=2, kind="Worker", beside=(), suspend=False, **more
):
    """Write the PyTorchJob of the exercise, or a wrong one."""
    container = {"name": name, "image": "mine:1", "command": ["torchrun", "a.py"]} | more
    template = {"spec": {"containers": [*beside, container]}}
    replicas = {"restartPolicy": policy, "template": template}
    specs = {"Master": replicas | {"replicas": 1}, kind: replicas | {"replicas": workers}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "mine"},
        "spec": {"pytorchReplicaSpecs": specs, "runPolicy": {"suspend": suspend}},
    }


@pytest.mark.parametrize(
    ("written", "check", "words"),
    [
        (pytorch_job(), "", ""),
        (pytorch_job(beside=[{"name": "log", "image": "busybox"}]), "", ""),
        (pytorch_job(suspend=True), "as many pods", "suspend keeps pods"),
        (pytorch_job(command=None, args=["torchrun", "a.py"]), "image and command", "has no command"),
        (pytorch_job(name="mine"), "called pytorch", "'mine'"),
        (pytorch_job(policy="Sometimes"), "not restarted on its own", "'Sometimes'"),
        (pytorch_job(policy="OnFailure"), "not restarted on its own", "'Never'"),
        (pytorch_job(workers=3), "as many pods", "should be 3"),
        (pytorch_job(command=["python", "a.py"]), "image and command", "command"),
        (pytorch_job(kind="Workers"), "a Master and Workers", "Workers"),
        ({"kind": "Deployment"}, "it is a PyTorchJob", "'Deployment'"),
        (None, "it is a PyTorchJob", "None"),
    ],
)
def test_the_exercise_of_a_pytorch_job_is_judged_by_the_operator(
    written, check, words, local_cluster, training_operator
):
    checklist = kit.check("09", job=written, deployment=DEPLOYMENT, cluster=local_cluster)
    failed = {row.name: row.advice for row in checklist if row.right is False}
    assert bool(checklist) == (written is not None and not check), checklist
    assert not check or any(check in name and words in advice for name, advice in failed.items()), checklist


def test_the_rank_of_a_pytorch_job_that_fails_is_named(launch, write_trainer, training_operator):
    source = """
        import os, time
        if os.environ["RANK"] == "1":
            raise ValueError("the second node")
        time.sleep(600)  # the job succeeds when its master does, whatever became of the workers
    """
    path = write_trainer(source)
    command = [{"name": "pytorch", "command": ["python", f"/trainyard/trainer/{path.name}"]}]
    replica = {"template": {"spec": {"containers": command}}}
    job = kit.PyTorchJob(path, nodes=2)
    run = launch(job.patch({"spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}}))
    with pytest.raises(kit.RunFailed, match="the second node") as failed:
        run.wait(timeout=120)
    assert failed.value.rank == 1
    run.delete()


@pytest.mark.slow
def test_definitions_stay_while_there_are_objects_of_them(launch, write_trainer, local_cluster):
    """Installs anew what it removes; last of the tests with this operator."""
    kit.install("training-operator", cluster=local_cluster)
    run = launch(kit.PyTorchJob(write_trainer(TRAINER), nodes=1))
    left = kit.uninstall("training-operator", cluster=local_cluster)
    assert [row["name"] for row in left] == [run.name]
    assert "training-operator" not in local_cluster.kubectl("get deployments -A")
    assert local_cluster.run(run.name).kind == "PyTorchJob"
    run.delete()
    assert not len(kit.uninstall("training-operator", cluster=local_cluster))
    for kind in ("customresourcedefinitions", "namespaces", "clusterroles"):
        assert "kubeflow" not in local_cluster.kubectl(f"get {kind} -o name")


@pytest.fixture(scope="module")
def trainer(local_cluster):
    yield kit.install("trainer", cluster=local_cluster)
    local_cluster.kubectl("delete trainjobs --all")
    assert not len(kit.uninstall("trainer", cluster=local_cluster))
    with pytest.raises(KitError):
        local_cluster.kubectl("get trainjobs")


def add_ranks(text):
    """Train as a learner's function does: it imports what it uses."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {int(total)} {text}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_kubeflows_own_sdk_trains_a_function_on_the_cluster(local_cluster, trainer, caplog):
    from kubeflow.trainer import CustomTrainer, KubernetesBackendConfig, TrainerClient  # takes seconds

    access = {"config_file": str(local_cluster.kubeconfig), "namespace": local_cluster.kube.namespace}
    client = TrainerClient(KubernetesBackendConfig(**access))
    assert "version info is not available" not in caplog.text  # its ConfigMap is there
    assert "torch-distributed" in [runtime.name for runtime in client.list_runtimes()]
    name = client.train(trainer=CustomTrainer(func=add_ranks, func_args={"text": "of the SDK"}, num_nodes=2))
    assert client.wait_for_job_status(name, timeout=120).status == "Complete"
    for rank in range(2):
        log = "\n".join(client.get_job_logs(name, step=f"node-{rank}"))
        assert f"rank {rank} of 2 sum 2 of the SDK" in log
    assert local_cluster.run(name).kind == "TrainJob"
    client.delete_job(name)
    with pytest.raises(RuntimeError):
        client.get_job(name)
