"""What keeps a cluster awake that nobody is connected to."""

import pytest

from localkube.controlplane.sleep import WAKEFUL

READY = {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}
LOST = {"conditions": [{"type": "Ready", "status": "Unknown", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True"}]}
CASES = [  # resource, spec, status, whether it keeps the cluster awake
    ("v1/pods", {}, {"phase": "Running"}, True),
    ("v1/pods", {}, {"phase": "Pending"}, True),
    ("v1/pods", {}, {"phase": "Succeeded"}, False),
    ("batch/v1/jobs", {}, {}, True),
    ("batch/v1/jobs", {"suspend": True}, SUSPENDED, False),
    ("batch/v1/jobs", {}, COMPLETE, False),
    ("batch/v1/jobs", {"ttlSecondsAfterFinished": 0}, COMPLETE, True),
    ("batch/v1/cronjobs", {}, {}, True),
    ("batch/v1/cronjobs", {"suspend": True}, {}, False),
    ("apps/v1/deployments", {}, {}, True),
    ("apps/v1/deployments", {"replicas": 0}, {}, False),
    ("apps/v1/statefulsets", {"replicas": 1}, {}, True),
    ("apps/v1/replicasets", {"replicas": 0}, {}, False),
    ("v1/replicationcontrollers", {"replicas": 2}, {}, True),
    ("apps/v1/daemonsets", {}, {"desiredNumberScheduled": 1}, True),
    ("apps/v1/daemonsets", {}, {"desiredNumberScheduled": 0}, False),
    ("autoscaling/v2/horizontalpodautoscalers", {}, {}, True),
    ("v1/services", {"type": "ClusterIP"}, {}, False),
    ("v1/services", {"type": "NodePort"}, {}, True),
    ("v1/persistentvolumeclaims", {}, {"phase": "Pending"}, True),
    ("v1/persistentvolumeclaims", {}, {"phase": "Bound"}, False),
    ("v1/namespaces", {}, {"phase": "Terminating"}, True),
    ("v1/namespaces", {}, {"phase": "Active"}, False),
    ("v1/nodes", {}, LOST, True),
    ("v1/nodes", {}, READY, False),
]


@pytest.mark.parametrize(("resource", "spec", "status", "awake"), CASES)
def test_pending_work_of_controllers_keeps_a_cluster_awake(resource, spec, status, awake):
    metadata = {"name": "a", "namespace": "default"}
    assert WAKEFUL[resource]({"metadata": metadata, "spec": spec, "status": status}) is awake


def test_every_resource_that_is_looked_at_has_a_case():
    assert {case[0] for case in CASES} == set(WAKEFUL)


@pytest.mark.parametrize(
    ("namespace", "awake"), [("kube-system", False), ("default", True)], ids=["the-cluster's", "a-user's"]
)
def test_the_pods_of_the_clusters_own_programs_do_not(namespace, awake):
    metadata = {"namespace": namespace, "labels": {"tier": "control-plane"}}
    assert WAKEFUL["v1/pods"]({"metadata": metadata, "status": {"phase": "Running"}}) is awake
