"""PyTorchJob and TrainJob as data: what is different in them from an Indexed Job."""

from types import SimpleNamespace

import pytest
import yaml

import kitlib as kit
from kitlib.clusters import Cluster
from kitlib.errors import KitError
from trainyard_kit.clouds.cluster import CloudCluster


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("print('hello')\n")
    return path


@pytest.fixture
def spec_of(trainer):
    """Return the spec of a job's main object."""

    def make(way, **arguments):
        job = way(trainer, name="digits", **arguments)
        config_map, main = job.objects
        assert config_map["data"]["mine.py"] == "print('hello')\n"
        assert main["metadata"]["labels"]["trainyard/run"] == "digits"
        return main["spec"]

    return make


def pod_of(replica):
    return replica["template"]["spec"]


def patched_pods(spec):
    """Return what a TrainJob patches of the runtime's pod template."""
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    return job["template"]["spec"]["template"]


def test_the_first_node_is_the_master_and_the_others_are_workers(spec_of):
    replicas = spec_of(kit.PyTorchJob, nodes=4)["pytorchReplicaSpecs"]
    assert {kind: replica["replicas"] for kind, replica in replicas.items()} == {"Master": 1, "Worker": 3}
    assert pod_of(replicas["Master"]) == pod_of(replicas["Worker"])
    assert set(spec_of(kit.PyTorchJob, nodes=1)["pytorchReplicaSpecs"]) == {"Master"}


def test_processes_of_a_node_are_text_to_one_operator_and_a_number_to_the_other(spec_of):
    assert spec_of(kit.PyTorchJob, processes_per_node=2)["nprocPerNode"] == "2"
    assert spec_of(kit.TrainJob, processes_per_node=2)["trainer"]["numProcPerNode"] == 2


def test_torchrun_is_told_by_the_operator_and_not_by_us(spec_of):
    (container,) = pod_of(spec_of(kit.PyTorchJob)["pytorchReplicaSpecs"]["Master"])["containers"]
    trainer = spec_of(kit.TrainJob)["trainer"]
    for side in (container, trainer):
        assert side["command"] == ["torchrun", "/trainyard/trainer/mine.py"]
        assert not [variable for variable in side.get("env", []) if variable["name"].startswith("PET_")]
    assert container["name"] == "pytorch"  # no other is given the variables


def test_the_pods_of_a_pytorch_job_carry_the_run_and_keep_off_each_others_nodes(spec_of):
    worker = spec_of(kit.PyTorchJob)["pytorchReplicaSpecs"]["Worker"]
    assert worker["template"]["metadata"]["labels"]["trainyard/run"] == "digits"
    (spread,) = pod_of(worker)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {"training.kubeflow.org/job-name": "digits"}


def test_volumes_and_gpus_reach_the_pods_of_a_train_job_as_patches(spec_of):
    spec = spec_of(kit.TrainJob, nodes=3, volumes={"/data": "shared"}, gpus=2, args={"epochs": 3})
    pods = patched_pods(spec)["spec"]
    (container,) = pods["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pods["volumes"]}
    assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert volumes[mounts["/trainyard/trainer"]]["configMap"]["name"] == "digits"
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    assert pods["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (3, 2)
    assert spec["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == "2"
    assert spec["trainer"]["args"] == ["--epochs=3"]


class GpuPool(Cluster):
    """A provider whose GPU nodes have to be asked for; the rest of the contract is not needed here."""

    provider = "pool"
    create = find = list = kubeconfig = kubectl_command = delete = explain = None
    kube = SimpleNamespace(get_all=lambda kind: [], raw=lambda path: {})

    def trainer_image(self):
        return "registry.example/trainer@sha256:0"

    def pod_additions(self, *, gpus=0):
        taint = {"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
        return {"nodeSelector": {"pool": "gpu"}, "tolerations": [taint]} if gpus else {}


@pytest.mark.parametrize("way", [kit.IndexedJob, kit.PyTorchJob, kit.TrainJob])
def test_a_providers_additions_to_pods_are_in_the_manifest(way, trainer):
    job = way(trainer, gpus=1)
    manifest = job.bind(GpuPool("pool")).manifest()
    assert "nodeSelector" not in job.manifest()
    specs = [
        document for document in _dicts(list(yaml.safe_load_all(manifest))) if "nodeSelector" in document
    ]
    assert specs
    for pod in specs:
        assert pod["nodeSelector"] == {"pool": "gpu"}
        assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu", "pool"]


class AtACloud(GpuPool):
    pool, pod_additions = "training", CloudCluster.pod_additions


def test_a_train_job_patches_what_the_sdks_model_of_its_api_knows(trainer, monkeypatch):
    from kubeflow_trainer_api import models  # takes a second

    monkeypatch.setenv("TRAINYARD_PULL_SECRET", "mine")
    job = kit.TrainJob(trainer, name="digits", image="registry.example/mine:1", volumes={"/data": "shared"})
    bound = job.bind(AtACloud("lab"))
    bound.annotations = {"gke-gcsfuse/volumes": "true"}
    main = bound.objects[-1]
    assert models.TrainerV1alpha1TrainJob.from_dict(main).to_dict() == main
    pods = patched_pods(main["spec"])
    assert pods["metadata"]["labels"]["trainyard/run"] == "digits"
    assert pods["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
    assert pods["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    assert pods["spec"]["affinity"]


def _dicts(value):
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        yield from _dicts(item)


@pytest.mark.parametrize("way", [kit.IndexedJob, kit.PyTorchJob, kit.ElasticJob])
def test_a_jobs_pods_have_the_priority_that_was_asked_for(trainer, way):
    job = way(trainer, name="digits", priority="low")
    assert job.priorities == ("low",)
    assert job.manifest().count("priorityClassName: low") == (2 if way is kit.PyTorchJob else 1)
    assert "priorityClassName" not in way(trainer, name="digits").manifest()


def test_a_train_job_says_that_it_cannot_name_a_priority(trainer):
    with pytest.raises(KitError, match="cannot name the PriorityClass"):
        kit.TrainJob(trainer, priority="low")


def test_a_pytorch_job_with_limits_has_workers_alone_that_meet_outside_of_them(trainer):
    trainer.write_text("import elastic\n")
    job = kit.PyTorchJob(trainer, name="digits", nodes=2, min_nodes=1, max_nodes=4)
    kinds = [item["kind"] for item in job.objects]
    assert kinds == ["ConfigMap", "Service", "Pod", "PyTorchJob"]
    assert {"mine.py", "elastic_launch.py", "elastic_rendezvous.py"} <= set(job.objects[0]["data"])
    spec = job.objects[-1]["spec"]
    policy = spec["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (1, 4)
    assert policy["rdzvHost"] == "digits-store.digits"
    assert policy["rdzvId"].startswith("digits-")
    assert set(spec["pytorchReplicaSpecs"]) == {"Worker"}
    (container,) = pod_of(spec["pytorchReplicaSpecs"]["Worker"])["containers"]
    assert container["command"][1:] == ["/trainyard/trainer/elastic_launch.py", "/trainyard/trainer/mine.py"]


def test_an_elastic_job_with_limits_is_started_by_the_elastic_launcher(trainer):
    trainer.write_text("import elastic\n")
    spec = kit.ElasticJob(trainer, nodes=2, min_nodes=1, max_nodes=4, processes_per_node=2).objects[-1][
        "spec"
    ]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    pod = pod_of(spec["replicaSpecs"]["Worker"])
    (container,) = pod["containers"]
    assert container["command"] == ["python", "/trainyard/trainer/elastic_launch.py"]
    assert container["args"] == ["--nproc_per_node=2", "--max_restarts=10", "/trainyard/trainer/mine.py"]
    assert pod["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"
    assert all(toleration["tolerationSeconds"] for toleration in pod["tolerations"])


@pytest.mark.parametrize("way", [kit.ElasticJob, kit.PyTorchJob])
@pytest.mark.parametrize(("fewest", "most"), [(3, 4), (1, 1), (0, 4), (2, 1)])
def test_limits_that_contradict_each_other_are_refused_before_anything_is_started(trainer, way, fewest, most):
    with pytest.raises(KitError):
        way(trainer, nodes=2, min_nodes=fewest, max_nodes=most)
