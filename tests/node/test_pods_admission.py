"""Pods that a node does not admit, the kernel's parameters of others, and changes that only count."""

import pytest

from .clusters import container, on_node, pod
from .workloads import job


def sysctls(**values):
    return {"sysctls": [{"name": name.replace("__", "."), "value": value} for name, value in values.items()]}


def refused(pods, manifest):
    """Return reason and message of a pod that its node rejects, of which the kubelet reports nothing more."""
    rejected = pods.finish(manifest)
    status = rejected["status"]
    by_others = {"conditions", "qosClass", "observedGeneration"}
    assert set(status) - by_others == {"phase", "reason", "message", "startTime"}, status
    assert {condition["type"] for condition in status.get("conditions", [])} <= {"PodScheduled"}
    assert status["phase"] == "Failed"
    shown = pods.cluster.kubectl("get", "pod", rejected["metadata"]["name"], "--no-headers").split()[2]
    assert shown == status["reason"]
    return status["reason"], status["message"]


@pytest.mark.namespaces
def test_a_pod_sets_parameters_of_its_own_namespaces(pods):
    script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_local_port_range"
    spec = sysctls(kernel__shm_rmid_forced="1", net__ipv4__ip_local_port_range="40000 41000")
    assert pods.output(pod(script, securityContext=spec)).split() == ["1", "40000", "41000"]
    assert pods.output(pod(script)).split()[0] == "0"


def test_a_pod_that_sets_an_unsafe_parameter_is_refused(pods):
    reason, message = refused(pods, pod("true", securityContext=sysctls(kernel__msgmax="1")))
    assert reason == "SysctlForbidden"
    assert message == 'Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted'


def test_pods_that_take_each_others_places_on_a_full_node_are_admitted(cluster, pods):
    main = {"resources": {"requests": {"cpu": "300m"}}}
    turns = pod("true", main=main, **on_node(0))
    body = job("turns", turns, completions=60, parallelism=20, backoffLimit=0)
    cluster.kubectl("create", "-f", "-", stdin=body)
    cluster.kubectl("wait", "--for=condition=Complete", "job/turns", "--timeout=120s")
    cluster.kubectl("delete", "job", "turns")


def test_every_change_of_the_specification_is_observed(cluster, pods):
    name = pods.running(pod("exec sleep 600"))["metadata"]["name"]
    cluster.kubectl("patch", "pod", name, "-p", '{"spec":{"activeDeadlineSeconds":5000}}')
    updated = pods.until(name, lambda pod: pod["status"]["observedGeneration"] == 2)
    observed = {row["type"]: row["observedGeneration"] for row in updated["status"]["conditions"]}
    assert set(observed.values()) == {2}, observed


def test_a_change_is_observed_in_a_pod_that_waits(cluster, pods):
    source = {"configMapKeyRef": {"name": "not-there", "key": "a"}}
    name = pods.create(pod("true", main={"env": [{"name": "A", "valueFrom": source}]}))
    pods.until(name, lambda pod: "waiting" in container(pod)["state"])
    cluster.kubectl("patch", "pod", name, "-p", '{"spec":{"activeDeadlineSeconds":5000}}')
    pods.until(name, lambda pod: pod["status"]["observedGeneration"] == 2)
