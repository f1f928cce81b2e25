"""CPUs and GPUs of pods, of every kind of job, from the nodes of the cluster."""

import json
import re

import pytest

import kitlib as kit
from kitlib.errors import BadInput, Rejected
from kitlib.jobs.resources import NodeResources, check_room

from . import objects
from .objects import node

SERVED = "trainers/mnist_parameter_server.py"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
WAYS = (kit.IndexedJob, kit.PyTorchJob, kit.TrainJob, kit.ElasticJob, kit.TorchElastic, kit.ParameterServer)


class Api:
    """Nodes, as Kubernetes lists them, or a refusal, and quotas."""

    cluster, namespace = "lab", "attendee-ada"

    def __init__(self, nodes, quotas=()):
        self.nodes, self.quotas = nodes, quotas

    def get_all(self, kind):
        if kind == "Node" and self.nodes is None:
            raise Rejected("forbidden", about="nodes", fix="ask", status=403)
        return self.nodes if kind == "Node" else list(self.quotas)


def cluster(*nodes, quotas=(), planned=(), listed=True):
    api = Api(nodes if listed else None, quotas)
    return objects.cluster(api, provider="local", training_gpus=planned)


GPU_NODES = [node(cpu="3920m", gpus="1", taints=[TAINT])] * 4
CPU_NODES = [node(cpu="3920m")] * 4


def job_of(way, **arguments):
    if way is kit.ParameterServer:
        return way(SERVED, data="/data/mnist", volumes={"/data": "shared"}, name="lab", **arguments)
    return way(objects.TRAINER, name="lab", **arguments)


def containers_of(job):
    """Return containers of the pods that train, and those of all others."""
    if isinstance(job, kit.ParameterServer):
        (text,) = [item["data"] for item in job.objects if item["metadata"]["name"].endswith("-templates")]
        pods = {role: json.loads(text[f"{role}.json"])["spec"]["containers"][0] for role in ("worker", "ps")}
        return pods["worker"], [pods["ps"], job.objects[-1]["spec"]["template"]["spec"]["containers"][0]]
    if isinstance(job, kit.TrainJob):
        trainer = job.objects[-1]["spec"]["trainer"]
        return trainer | {"resources": trainer["resourcesPerNode"]}, []
    workers = list(_containers(job.objects[-1]))
    rest = [
        other_container
        for item in job.objects
        if item["kind"] == "Pod"
        for other_container in item["spec"]["containers"]
    ]
    return workers[0], [container for container in rest if container["name"] == "store"]


def _containers(item):
    for key, value in item.items() if isinstance(item, dict) else enumerate(item):
        if key == "containers":
            yield from value
        elif isinstance(value, dict | list):
            yield from _containers(value)


def variables(container):
    return {variable["name"]: variable.get("value") for variable in container.get("env", [])}


@pytest.mark.parametrize("way", WAYS)
def test_each_worker_gets_a_gpu_and_no_cpu_limit_where_nodes_have_gpus(way):
    worker, rest = containers_of(job_of(way).bind(cluster(*GPU_NODES)))
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(worker)
    for container in rest:
        assert "nvidia.com/gpu" not in container["resources"].get("limits", {})
        assert variables(container)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("gpus", "nodes"), [(0, GPU_NODES), (None, CPU_NODES)])
def test_a_worker_without_gpus_sees_none_and_has_its_share_of_the_cores(way, gpus, nodes):
    spare = [node(cpu="3920m")] * 4
    job = job_of(way, gpus=gpus).bind(cluster(*nodes, *spare))
    worker, rest = containers_of(job)
    assert "nvidia.com/gpu" not in job.manifest()
    assert variables(worker)["NVIDIA_VISIBLE_DEVICES"] == "void"
    crowded = way is kit.ParameterServer and nodes is GPU_NODES  # its 7 pods share the 4 other nodes
    assert worker["resources"]["limits"]["cpu"] == ("1960m" if crowded else "3920m")
    assert all(variables(container)["NVIDIA_VISIBLE_DEVICES"] == "void" for container in rest)


@pytest.mark.parametrize("way", WAYS)
def test_only_workers_with_gpus_tolerate_the_taint_of_their_nodes(way):
    tolerated = re.findall(r'key"?: "?nvidia.com/gpu', job_of(way, gpus=1).bind(cluster()).manifest())
    templates = {
        kit.PyTorchJob: 2,
        kit.TorchElastic: 5,
    }  # master and worker; four workers, and their template
    assert len(tolerated) == templates.get(way, 1)
    assert "nvidia.com/gpu" not in job_of(way, gpus=0).bind(cluster()).manifest()


@pytest.mark.parametrize(
    ("nodes", "pods", "processes", "gpus"),
    [
        (GPU_NODES, 4, 1, 1),
        (GPU_NODES, 2, 2, 1),  # two processes share one
        ([node(gpus="4")] * 2, 2, 4, 4),
        ([node(gpus="4")], 4, 1, 1),
        (GPU_NODES, 5, 1, 0),  # the fifth would wait forever
        (CPU_NODES, 4, 1, 0),
        ([node(gpus="8", taints=[{"key": "example.com/reserved", "effect": "NoSchedule"}])], 1, 1, 0),
        ([node(gpus="8", ready="False"), node(gpus="8", unschedulable=True)], 1, 1, 0),
    ],
)
def test_gpus_are_counted_on_the_nodes_where_pods_may_run(nodes, pods, processes, gpus):
    assert NodeResources.read(cluster(*nodes)).gpus_of_each(pods, processes=processes) == gpus


@pytest.mark.parametrize(
    ("nodes", "pods", "processes", "limit"),
    [
        (CPU_NODES, 4, 1, "3920m"),
        (CPU_NODES, 8, 1, "1960m"),
        (CPU_NODES, 8, 2, "2"),  # a core for each process
        ([node(cpu="1")] * 4, 4, 1, "1"),
        # It cannot run on the first.
        ([node(cpu="16", gpus="8", taints=[TAINT]), node(cpu="2")], 1, 1, "2000m"),
        ([], 4, 3, "3"),
    ],
)
def test_cores_of_a_node_are_divided_by_the_pods_that_it_holds(nodes, pods, processes, limit):
    assert NodeResources.read(cluster(*nodes)).cpu_limit(pods, processes=processes) == limit


def test_tolerations_of_the_settings_count():
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    gpu_cluster = cluster(node(gpus="2", taints=[taint]))
    assert NodeResources.read(gpu_cluster).gpus_of_each(1) == 0
    toleration = {"key": "dedicated", "operator": "Equal", "value": "training"}
    assert NodeResources.read(gpu_cluster, [toleration]).gpus_of_each(1) == 1


def test_an_attendee_who_may_not_list_nodes_has_the_gpus_of_the_quota():
    quota = {"spec": {"hard": {"requests.nvidia.com/gpu": "2", "pods": "20"}}}
    resources = NodeResources.read(cluster(quotas=[quota], listed=False))
    assert (resources.gpus_of_each(2), resources.gpus_of_each(3), resources.cpu_limit(4)) == (1, 0, "1")


def test_gpus_of_nodes_that_an_autoscaler_would_add_count():
    resources = NodeResources.read(cluster(node(), node(gpus="1"), planned=(1, 1)))
    assert (resources.gpus_of_each(2), resources.gpus_of_each(3)) == (1, 0)


OFF = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("options", "nodes", "words"),
    [
        ({"gpus": 4}, [node()] * 2, "requests 4 GPUs, and the largest of 2 nodes has 0"),
        ({"gpus": 4}, [node(gpus="2")], "requests 4 GPUs, and the largest of 1 nodes has 2"),
        ({"gpus": 4}, [node(gpus="4", taints=[TAINT])], None),
        ({"gpus": 4}, [node(gpus="4", taints=[OFF], unschedulable=True)], None),
        (
            {"cpu": 1000},
            [node(), node(cpu="7500m")],
            "requests 1000 cores, and the largest of 2 nodes has 7.5",
        ),
        (
            {"memory": "9Gi"},
            [node(memory="8Gi")],
            "requests 9 GiB of memory, and the largest of 1 nodes has 8 GiB",
        ),
        ({"memory": "7Gi", "cpu": 2}, [node(memory="8Gi")], None),
    ],
)
def test_pods_that_are_larger_than_every_node_are_found_for_every_kind_of_job(way, options, nodes, words):
    if way is kit.ParameterServer and "gpus" not in options:
        pytest.skip("its servers have requests of their own")
    place = cluster(*nodes)
    objects = job_of(way, **options).bind(place).objects
    if words is None:
        check_room(objects, place, about="run")
        return
    with pytest.raises(BadInput, match=words):
        check_room(objects, place, about="run")


def test_gpus_of_an_autoscalers_nodes_count():
    planned = cluster(node(), planned=(4, 4))
    check_room(job_of(kit.IndexedJob, gpus=4).bind(planned).objects, planned, about="run")
    hidden = cluster(node(), listed=False)
    check_room(job_of(kit.IndexedJob, gpus=4).bind(hidden).objects, hidden, about="run")
