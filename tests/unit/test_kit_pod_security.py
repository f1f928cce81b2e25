"""The security context of the kit's pods, by what the Pod Security Standard ``restricted`` demands."""

import json

import pytest
import yaml

from kitlib import config
from kitlib.datasets.dataset import DatasetJob
from kitlib.errors import BadInput
from kitlib.jobs.elastic_job import ElasticJob
from kitlib.jobs.indexed_job import IndexedJob
from kitlib.jobs.pytorch_job import PyTorchJob
from kitlib.jobs.torch_elastic import TorchElastic
from kitlib.jobs.train_job import TrainJob
from kitlib.k8s.pod_security import PodSecurity
from trainyard_kit.elasticdl.parameter_server import ParameterServer

from .objects import TRAINER

SERVED = "trainers/mnist_parameter_server.py"
JOBS = {
    "IndexedJob": lambda **more: IndexedJob(TRAINER, **more),
    "IndexedJob that fetches": lambda **more: IndexedJob("s3://bucket/main.py", **more),
    "PyTorchJob": lambda **more: PyTorchJob(TRAINER, **more),
    "elastic PyTorchJob": lambda **more: PyTorchJob(TRAINER, min_nodes=1, **more),
    "TrainJob": lambda **more: TrainJob(TRAINER, **more),
    "ElasticJob": lambda **more: ElasticJob(TRAINER, **more),
    "TorchElastic": lambda **more: TorchElastic(TRAINER, **more),
    "TorchElastic by etcd": lambda **more: TorchElastic(TRAINER, rendezvous="etcd", **more),
    "ParameterServer": lambda **more: ParameterServer(
        SERVED, data="/data/mnist", volumes={"/data": "shared"}, **more
    ),
}


def pod_specs(part):
    """Find the specs of pods in objects, also those that a master creates from JSON."""
    if isinstance(part, list):
        return [spec for item in part for spec in pod_specs(item)]
    if not isinstance(part, dict):
        return []
    if "containers" in part:
        return [part]
    data = part.get("data") if part.get("kind") == "ConfigMap" else None
    inside = [json.loads(text) for name, text in (data or {}).items() if name in ("ps.json", "worker.json")]
    return pod_specs(inside) + [spec for item in part.values() for spec in pod_specs(item)]


def violations(spec):
    """Check a pod's spec by the controls of the standard that its fields can break."""
    pod = spec.get("securityContext") or {}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        of_container = container.get("securityContext") or {}
        if not of_container.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield container["name"], "runAsNonRoot"
        if of_container.get("runAsUser", pod.get("runAsUser")) == 0:
            yield container["name"], "runAsUser"
        if of_container.get("seccompProfile", pod.get("seccompProfile")) != {"type": "RuntimeDefault"}:
            yield container["name"], "seccompProfile"
        if of_container.get("allowPrivilegeEscalation") is not False:
            yield container["name"], "allowPrivilegeEscalation"
        if of_container.get("capabilities") != {"drop": ["ALL"]}:
            yield container["name"], "capabilities"


@pytest.mark.parametrize("kind", JOBS)
def test_the_pods_of_all_jobs_are_restricted_by_default(kind):
    specs = pod_specs(JOBS[kind]().objects)
    assert specs
    assert [broken for spec in specs for broken in violations(spec)] == []
    assert {spec["securityContext"]["runAsUser"] for spec in specs} == {65532}


@pytest.mark.parametrize("kind", JOBS)
def test_one_argument_runs_them_as_root_with_the_rights_of_their_images(kind):
    specs = pod_specs(JOBS[kind](run_as_user=0).objects)
    assert [spec["securityContext"] for spec in specs] == [{"runAsUser": 0}] * len(specs)
    assert not any("securityContext" in container for spec in specs for container in spec["containers"])
    assert "trainyard" not in {
        variable.get("value")
        for spec in specs
        for container in spec["containers"]
        for variable in container.get("env", [])
    }


def test_the_job_of_a_dataset_is_restricted_and_follows_the_setting(monkeypatch):
    (spec,) = pod_specs(DatasetJob("digits", volume="shared").objects)
    assert list(violations(spec)) == []
    monkeypatch.setenv("TRAINYARD_RUN_AS_USER", "1000")
    job = IndexedJob(TRAINER)
    (spec,) = pod_specs(job.objects)
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (1000, 1000)
    monkeypatch.setenv("TRAINYARD_RUN_AS_USER", "root")
    with pytest.raises(BadInput, match="TRAINYARD_RUN_AS_USER=root"):
        config.read()


@pytest.mark.parametrize("wrong", [-1, 2**31, "root", 1.5, True])
def test_a_user_is_a_number(wrong):
    with pytest.raises(BadInput, match="run_as_user"):
        IndexedJob(TRAINER, run_as_user=wrong)


def test_a_user_that_no_image_knows_has_a_home_and_a_name():
    def environment(job):
        (spec,) = pod_specs(job.objects)
        env = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
        return env.get("HOME"), env.get("USER")

    assert environment(IndexedJob(TRAINER)) == ("/tmp", "trainyard")
    assert environment(IndexedJob(TRAINER, run_as_user=1000)) == (None, None), "its image knows it"
    assert environment(IndexedJob(TRAINER, run_as_user=1_000_650_000)) == ("/tmp", "trainyard")
    (trainer,) = (item for item in TrainJob(TRAINER).objects if item["kind"] == "TrainJob")
    names = [item["name"] for item in trainer["spec"]["trainer"]["env"]]
    assert names.count("HOME") == 1


def test_where_the_namespace_chooses_the_user_none_is_set():
    (spec,) = pod_specs([PodSecurity(None).apply(item) for item in IndexedJob(TRAINER).build()])
    assert list(violations(spec)) == []
    assert not {"runAsUser", "fsGroup", "fsGroupChangePolicy"} & set(spec["securityContext"])


@pytest.mark.parametrize(
    "context",
    [
        {"securityContext": {"runAsUser": 0}},
        {"hostNetwork": True},
        {"containers": [{"name": "pytorch", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "pytorch", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}]},
    ],
    ids=str,
)
def test_a_patch_that_says_how_a_pod_runs_as_root_is_enough(context):
    job = IndexedJob(TRAINER).patch({"spec": {"template": {"spec": context}}})
    (spec,) = pod_specs(job.objects)
    assert "runAsNonRoot" not in spec.get("securityContext", {})
    for container, patch in zip(spec["containers"], context.get("containers", [{}]), strict=True):
        assert container.get("securityContext") == patch.get("securityContext")


def test_fields_set_by_a_patch_are_not_replaced():
    patch = {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 7, "fsGroup": 8}}}}}
    (spec,) = pod_specs(IndexedJob(TRAINER).patch(patch).objects)
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (7, 8)
    assert list(violations(spec)) == []


@pytest.mark.parametrize(
    "file",
    ["first-pods/sleepers", "volume/unbound", "volume/neighbours", "dataset/portal", "workshop/pull"]
    + ["operators/elastic-job/etcd"],
)
def test_the_manifests_that_notebooks_and_operators_apply_are_restricted(file):
    specs = pod_specs([*yaml.safe_load_all(config.manifests(f"{file}.yaml").read_text("utf-8"))])
    assert specs
    assert [broken for spec in specs for broken in violations(spec)] == []
