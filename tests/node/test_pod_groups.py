"""Pod groups: gangs, whole gangs that are preempted, and gangs that need one rack.

The cluster has two nodes of two GPUs each. What upstream tests with another resource takes GPUs here.
"""

import pytest

from .clusters import is_ready, on_node, pod
from .workloads import FOREVER, named

API = {"apiVersion": "scheduling.k8s.io/v1beta1"}
GPU = {"main": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}


@pytest.fixture
def pod_group(created_objects):
    """Create a PodGroup of a gang; return what its pods need in their spec."""

    def make(size, **spec):
        group = {
            "metadata": {"name": named("group")},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
        }
        group["spec"] |= spec
        return {"schedulingGroup": {"podGroupName": created_objects(API | {"kind": "PodGroup"} | group)}}

    return make


def is_waiting(pod):
    """Tell whether the scheduler has looked at a pod and found no place."""
    conditions = {item["type"]: item["status"] for item in pod["status"].get("conditions", ())}
    return conditions.get("PodScheduled") == "False" and "nodeName" not in pod["spec"]


def test_a_gang_of_four_starts_as_a_whole_or_not_at_all(created_objects, pods, cluster):
    """The example of https://kubernetes.io/docs/concepts/workloads/workload-api/, with a GPU a worker."""
    gang, controller = {"gang": {"minCount": 4}}, {"apiGroup": "batch", "kind": "Job", "name": "training-job"}
    template = {"name": "workers", "schedulingPolicy": gang}
    workload, group = named("training-job-workload"), named("training-worker")
    spec = {"controllerRef": controller, "podGroupTemplates": [template]}
    created_objects(API | {"kind": "Workload", "metadata": {"name": workload}, "spec": spec})
    spec = {"workloadRef": {"workloadName": workload, "templateName": "workers"}, "schedulingPolicy": gang}
    created_objects(API | {"kind": "PodGroup", "metadata": {"name": group}, "spec": spec})
    former = pods.running(pod(FOREVER, **GPU))["metadata"]["name"]
    workers = [pods.create(pod(FOREVER, schedulingGroup={"podGroupName": group}, **GPU)) for _ in range(4)]
    for worker in workers:  # three of the four GPUs are free
        pods.until(worker, is_waiting)
    cluster.kubectl("delete", "pod", former)
    assert all(pods.until(worker, is_ready)["spec"]["nodeName"] for worker in workers)


def priority_class(created_objects, value):
    """Create a PriorityClass, and return what pods and PodGroups of it need in their spec."""
    metadata = {"name": named("priority")}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata}
    return {"priorityClassName": created_objects(kind | {"value": value})}


@pytest.mark.parametrize(("mode", "preempted", "preemptor"), [("all", 2, "group"), ("single", 1, "pod")])
def test_a_gang_is_preempted_as_a_whole_if_it_says_so(
    mode, preempted, preemptor, created_objects, pod_group, pods
):
    """The objects of test/e2e/scheduling/workload_aware_preemption.go of v1.37.2, with GPUs."""
    low, high = (priority_class(created_objects, value) for value in (100, 1000))
    gang = pod_group(2, disruptionMode={mode: {}}, **low)
    victims = [pods.create(pod(FOREVER, **gang, **low, **GPU, **on_node(0))) for _ in range(2)]
    for victim in victims:
        pods.until(victim, is_ready)
    group = pod_group(1, disruptionMode={"single": {}}, **high) if preemptor == "group" else {}
    urgent = pods.create(pod(FOREVER, **group, **high, **GPU, **on_node(0)))
    assert pods.until(urgent, is_ready)["spec"]["nodeName"] == "node-0"
    # A pod that is ready where two had taken all has started after the deletion of its victims.
    left = [item.metadata for item in pods.cluster.core.list_namespaced_pod("default").items]
    left = [
        metadata.name for metadata in left if metadata.name in victims and not metadata.deletion_timestamp
    ]
    assert len(victims) - len(left) == preempted


def test_a_gang_that_needs_one_rack_waits_until_one_has_room(created_objects, pod_group, pods, cluster):
    """As in test/integration/scheduler/podgroup/topology_aware_scheduling of v1.37.2, with GPUs."""
    cluster.kubectl("label", "node", "node-0", "rack=rack-1")
    cluster.kubectl("label", "node", "node-1", "rack=rack-2")
    former = [pods.running(pod(FOREVER, **GPU, **on_node(node)))["metadata"]["name"] for node in (0, 1)]
    gang = pod_group(2, schedulingConstraints={"topology": [{"key": "rack"}]})
    workers = [pods.create(pod(FOREVER, **gang, **GPU)) for _ in range(2)]
    for worker in workers:  # two GPUs are free, one in each rack
        pods.until(worker, is_waiting)
    cluster.kubectl("delete", "pod", former[1])
    assert {pods.until(worker, is_ready)["spec"]["nodeName"] for worker in workers} == {"node-1"}
    cluster.kubectl("label", "node", "node-0", "node-1", "rack-")
