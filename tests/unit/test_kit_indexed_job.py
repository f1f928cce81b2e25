import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import kitlib as kit
from kitlib.errors import BadInput, KitError, Rejected, RunExists

from . import objects


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "my_trainer.py"
    path.write_text("print('hello')\n")
    return path


@pytest.fixture
def job_of(trainer):
    def make(**arguments):
        return {item["kind"]: item for item in kit.IndexedJob(trainer, name="digits", **arguments).objects}

    return make


def container_of(objects):
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    return container


def test_each_pod_runs_torchrun_with_its_completion_index(job_of):
    job = job_of(nodes=3)
    spec, container = job["Job"]["spec"], container_of(job)
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert container["command"] == [
        "torchrun",
        "--nnodes=3",
        "--nproc-per-node=1",
        "--node-rank=$(NODE_RANK)",
        "--rdzv-id=$(RUN_ID)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
        "/trainyard/trainer/my_trainer.py",
    ]
    variables = {variable["name"]: variable for variable in container["env"]}
    assert variables["MASTER_ADDR"]["value"] == "digits-0.digits"
    assert variables["PYTHONUNBUFFERED"]["value"] == "1"
    assert "job-completion-index" in variables["NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]


def test_a_manifest_of_ones_own_is_filled_in(job_of):
    options = {"template": "manifests/eks-workshop/train.yaml", "volumes": {"/data": "other"}}
    job = job_of(nodes=3, args={"epochs": 2}, **options)["Job"]
    spec, container = job["spec"]["template"]["spec"], container_of({"Job": job})
    assert (job["spec"]["completions"], container["name"]) == (3, "worker")
    assert (container["command"][1], container["args"]) == ("--nnodes=3", ["--epochs=2"])
    assert container["resources"]["requests"]["memory"] == "512Mi", "what is not given stays"
    (claim,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == "/data")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == claim["name"])
    assert volume["persistentVolumeClaim"]["claimName"] == "other"
    with pytest.raises(BadInput, match="this manifest has Service"):
        job_of(template="manifests/eks-workshop/service.yaml")


def test_the_pods_find_each_other_through_a_headless_service(job_of):
    objects = job_of()
    service, pod = objects["Service"]["spec"], objects["Job"]["spec"]["template"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == {"batch.kubernetes.io/job-name": "digits"}
    assert pod["subdomain"] == objects["Service"]["metadata"]["name"]
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == service["selector"]
    assert (spread["maxSkew"], spread["whenUnsatisfiable"]) == (1, "DoNotSchedule")
    labels = [item["metadata"]["labels"] for item in (*objects.values(), objects["Job"]["spec"]["template"])]
    assert {label["trainyard/run"] for label in labels} == {"digits"}
    assert all(set(label) >= {"trainyard/kit", "trainyard/owner"} for label in labels)


def test_gpus_bring_a_process_each_and_a_toleration_and_none_bring_none(job_of):
    with_gpus, without = job_of(gpus=2), job_of()
    assert "--nproc-per-node=2" in container_of(with_gpus)["command"]
    assert container_of(with_gpus)["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert with_gpus["Job"]["spec"]["template"]["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "nvidia.com/gpu" not in yaml.safe_dump(without)


def test_cpu_and_memory_are_requested_and_limited(job_of):
    resources = container_of(job_of(cpu=0.5, memory="2Gi"))["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "0.5", "memory": "2Gi"}
    container = container_of(job_of(processes_per_node=3))
    assert "--nproc-per-node=3" in container["command"]
    assert container["resources"]["limits"]["cpu"] == "3"
    threads = {variable["name"]: variable.get("value") for variable in container["env"]}["OMP_NUM_THREADS"]
    assert threads == "1"  # or three processes would start three threads each


def test_processes_share_memory_beyond_a_containers_64_megabytes(job_of):
    mounts = {mount["mountPath"]: mount["name"] for mount in container_of(job_of())["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in job_of()["Job"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}


def test_volumes_are_mounted_by_name_or_by_what_has_one(job_of):
    volume = SimpleNamespace(name="results")
    objects = job_of(volumes={"/data": "shared", "/more": "shared", "/results": volume})
    mounts = {mount["mountPath"]: mount["name"] for mount in container_of(objects)["volumeMounts"]}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in objects["Job"]["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert [claims[mounts[path]] for path in ("/data", "/more", "/results")] == [
        "shared",
        "shared",
        "results",
    ]
    assert len(mounts) == 6  # with the trainer, a folder to work in, and shared memory


def test_a_patch_makes_another_job_and_leaves_this_one_alone(trainer):
    job = kit.IndexedJob(trainer)
    patched = job.patch({"spec": {"activeDeadlineSeconds": 60}}).patch({"spec": {"suspend": True}})
    assert "suspend" not in job.manifest()
    spec = yaml.safe_load(patched.manifest("Job"))["spec"]
    assert (spec["activeDeadlineSeconds"], spec["suspend"]) == (60, True)
    with pytest.raises(BadInput, match="a patch is a dict"):
        job.patch("spec: {}")
    with pytest.raises(KitError, match="not a job, a program"):
        kit.launch(3)


def test_the_manifest_can_be_saved_and_seen_in_parts(trainer, tmp_path):
    job = kit.IndexedJob(trainer)
    saved = job.save(tmp_path / "job.yaml")
    kinds = [document["kind"] for document in yaml.safe_load_all(saved.read_text())]
    assert kinds == ["ConfigMap", "Service", "Job"]
    assert "hello" not in job.manifest("Job")
    with pytest.raises(BadInput, match="Pod"):
        job.manifest("Pod")
    with pytest.raises(BadInput, match="cannot be written"):
        job.save(tmp_path / "no" / "such" / "folder.yaml")


def test_a_trainer_is_found_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert kit.IndexedJob("trainers/digits_ddp.py").trainer.name == "digits_ddp.py"


def test_a_trainer_that_is_not_there_is_named_with_the_places_that_were_searched():
    with pytest.raises(BadInput, match="(?s)no such file.*nowhere.py.*" + str(Path.cwd())):
        kit.IndexedJob("nowhere.py")
    with pytest.raises(BadInput, match="not the path of a file"):
        kit.IndexedJob("nowhere.py", template={"spec": {}})


@pytest.mark.parametrize(
    "arguments",
    [
        {"nodes": 0},
        {"nodes": "4"},
        {"nodes": True},
        {"gpus": -1},
        {"processes_per_node": 0},
        {"volumes": "shared"},
        {"volumes": {"data": "shared"}},
        {"volumes": {"/dev/shm": "shared"}},
        {"volumes": {"/data": 3}},
        {"cpu": "much"},
        {"cpu": 0},
        {"memory": "2GB"},
        {"args": "--epochs 3"},
        {"name": "My Run"},
        {"name": "x" * 60},
        {"image": ""},
        {"image": "two words"},
        {"image": 3},
        {"launcher": "mpirun"},
        {"launcher": "python", "processes_per_node": 2},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(arguments, trainer):
    with pytest.raises(BadInput):
        kit.IndexedJob(trainer, **arguments)


class Api:
    """The API of a cluster, as far as a launch needs it: objects by kind and name."""

    cluster, namespace = "fake", "default"

    def __init__(self):
        self.objects, self.uids = {}, itertools.count()

    def get_all(self, kind, *, labels="", fields=""):
        key, _, value = labels.partition("=")
        name = fields.removeprefix("metadata.name=")
        return [
            item
            for (of, called), item in self.objects.items()
            if of == kind
            and name in ("", called)
            and (not key or item["metadata"]["labels"].get(key) == value)
        ]

    def find(self, kind, name):
        return self.objects.get((kind, name))

    def create(self, item, *, dry_run=False):
        if (item["kind"], item["metadata"]["name"]) in self.objects:
            raise Rejected("it exists", about="", fix="", status=409, reason="AlreadyExists")
        created = item | {"metadata": item["metadata"] | {"uid": str(next(self.uids))}}
        if not dry_run:
            self.objects[item["kind"], item["metadata"]["name"]] = created
        return created

    def delete(self, kind, name, *, uid):
        if self.objects.get((kind, name), {"metadata": {"uid": ""}})["metadata"]["uid"] == uid:
            del self.objects[kind, name]


@pytest.fixture
def cluster():
    return objects.cluster(Api())


def test_a_launch_replaces_an_earlier_run_of_its_name_only_if_it_is_asked_to(trainer, cluster):
    first = kit.launch(kit.IndexedJob(trainer, name="digits", nodes=2), cluster=cluster, replace=True)
    assert first.cluster is cluster
    again = kit.IndexedJob(trainer, name="digits", nodes=3)
    with pytest.raises(RunExists, match="replace=True"):
        kit.launch(again, cluster=cluster)
    assert cluster.kube.find("Job", "digits")["spec"]["completions"] == 2
    kit.launch(again, cluster=cluster, replace=True)
    assert cluster.kube.find("Job", "digits")["spec"]["completions"] == 3
    assert sorted(kind for kind, _ in cluster.kube.objects) == ["ConfigMap", "Job", "Service"]


def test_a_launch_warns_of_a_tag_of_the_official_image_that_does_not_exist(trainer, cluster, caplog):
    kit.launch(kit.IndexedJob(trainer, name="right", image="pytorch/pytorch"), cluster=cluster)
    kit.launch(kit.IndexedJob(trainer, name="wrong", image="pytorch/pytorch:2.15.0"), cluster=cluster)
    (record,) = [record for record in caplog.records if "process group" not in record.message]
    assert 'run "wrong"' in record.message
    assert 'no tag "2.15.0" of pytorch/pytorch' in record.message


def test_a_launch_says_what_stands_in_for_its_images_those_of_patches_too(trainer, cluster, caplog):
    cluster.image_notice = lambda image: f"{image} is replaced"
    beside = [{"name": "beside", "image": "ghcr.io/me/beside"}]
    spec = {"containers": beside, "initContainers": [*beside, {"name": "init", "image": "a"}]}
    job = kit.IndexedJob(trainer, image="me/mine:v1").patch({"spec": {"template": {"spec": spec}}})
    kit.launch(job.patch({"metadata": {"annotations": {"image": "no image"}}}), cluster=cluster)
    kit.launch(kit.TrainJob(trainer).patch({"spec": {"trainer": {"image": "b"}}}), cluster=cluster)
    messages = [record.message for record in caplog.records if record.message.endswith("is replaced")]
    assert messages == [f"{image} is replaced" for image in ("me/mine:v1", "ghcr.io/me/beside", "a", "b")]


def test_environment_variables_of_the_user_replace_the_kits(job_of):
    env = {
        "WANDB_MODE": "offline",
        "PRICE": "$(HOME) $$5",
        "STEPS": 3,
        "PYTHONUNBUFFERED": "0",
        "PYTHONPATH": "/mine",
    }
    variables = container_of(job_of(env=env))["env"]
    values = {variable["name"]: variable.get("value") for variable in variables}
    assert len(values) == len(variables)
    assert values["WANDB_MODE"] == "offline" and values["STEPS"] == "3" and values["PYTHONUNBUFFERED"] == "0"
    assert values["PRICE"] == "$$(HOME) $$$$5"  # which Kubernetes expands to the text itself
    assert "/mine" in values["PYTHONPATH"].split(":") and "_trainyard" in values["PYTHONPATH"]
    assert values["MASTER_ADDR"] == "digits-0.digits"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "0"}, "set for each rank"),
        ({"MASTER_ADDR": "here"}, "set for each rank"),
        ({"PET_NNODES": "2"}, "set for each rank"),
        ({"A=B": "1"}, "not a name of an environment variable"),
        ({"": "1"}, "not a name of an environment variable"),
        ({"DEBUG": True}, "is text"),
        ({"DEBUG": None}, "is text"),
        (["DEBUG=1"], "are a dict"),
    ],
)
def test_environment_variables_that_no_trainer_would_get_are_refused(job_of, env, message):
    with pytest.raises(BadInput, match=message):
        job_of(env=env)


def test_python_starts_a_program_or_a_module_once_in_each_pod(job_of, trainer):
    assert container_of(job_of(nodes=1, launcher="python"))["command"] == [
        "python",
        "/trainyard/trainer/my_trainer.py",
    ]
    objects = kit.IndexedJob(module="my_trainer", root=trainer.parent, launcher="python").objects
    (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "my_trainer"]
