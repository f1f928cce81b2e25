"""The cluster's own programs as pods of kube-system."""

import json

import pytest
from kubernetes.client import ApiException

from .clusters import PATIENCE, eventually, is_ready

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-dns", "kube-proxy", "kube-scheduler")
SCHEDULER = "kube-scheduler-node-0"


def pods_of(cluster):
    answer = cluster.kubectl("get", "pods", "-n", "kube-system", "-o", "json")
    return {pod["metadata"]["name"]: pod for pod in json.loads(answer)["items"]}


def the_pod(cluster, name):
    return pods_of(cluster).get(name) or {"metadata": {}, "status": {}}


@pytest.fixture(scope="module", autouse=True)
def all_ready(cluster):
    eventually(
        lambda: (
            {name for name, pod in pods_of(cluster).items() if is_ready(pod)}
            >= {f"{n}-node-0" for n in PROGRAMS}
        )
    )


def test_each_program_is_a_mirror_pod_of_its_node(cluster):
    mirror_pods = pods_of(cluster)
    for name in PROGRAMS:
        pod = mirror_pods[f"{name}-node-0"]
        annotations = pod["metadata"]["annotations"]
        assert annotations["kubernetes.io/config.source"] == "file"
        assert annotations["kubernetes.io/config.mirror"] == annotations["kubernetes.io/config.hash"]
        assert pod["status"]["phase"] == "Running"
        assert pod["metadata"]["ownerReferences"][0]["kind"] == "Node"
    server = mirror_pods["kube-apiserver-node-0"]
    assert (
        server["metadata"]["labels"].items()
        >= {"component": "kube-apiserver", "tier": "control-plane"}.items()
    )
    assert any(word.startswith("--etcd-servers=") for word in server["spec"]["containers"][0]["command"])
    selected = cluster.kubectl("get", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns", "-o", "name")
    assert selected == "pod/kube-dns-node-0\n"


def test_the_log_of_a_pod_is_its_programs(cluster):
    whole = cluster.kubectl("logs", "-n", "kube-system", SCHEDULER)
    assert whole in (cluster.root / "logs" / "kube-scheduler.log").read_text()
    assert '"Starting Kubernetes Scheduler"' in whole
    last = cluster.kubectl("logs", "-n", "kube-system", SCHEDULER, "--tail=1")
    assert last.count("\n") == 1
    assert len(cluster.kubectl("logs", "-n", "kube-system", SCHEDULER, "--limit-bytes=20")) == 20


def test_a_deleted_pod_is_there_again_and_its_program_goes_on(cluster):
    before = the_pod(cluster, SCHEDULER)["metadata"]["uid"]
    process = cluster.process("kube-scheduler").pid
    cluster.kubectl("delete", "pod", "-n", "kube-system", SCHEDULER, f"--timeout={PATIENCE}s")
    eventually(lambda: the_pod(cluster, SCHEDULER)["metadata"].get("uid") not in (None, before))
    eventually(lambda: is_ready(the_pod(cluster, SCHEDULER)))
    assert cluster.process("kube-scheduler").pid == process


def test_nobody_enters_a_program_by_its_pod(cluster):
    with pytest.raises(AssertionError, match="pod does not exist"):
        cluster.kubectl("exec", "-n", "kube-system", SCHEDULER, "--", "true")
    with pytest.raises(ApiException, match="config.mirror"):
        cluster.core.patch_namespaced_pod(
            SCHEDULER, "kube-system", {"metadata": {"annotations": {"kubernetes.io/config.mirror": "other"}}}
        )


def test_a_program_that_is_started_again_counts_it_also_for_the_next_kubelet(cluster):
    def restarts(name=SCHEDULER):
        statuses = the_pod(cluster, name)["status"].get("containerStatuses") or [{}]
        return statuses[0].get("restartCount"), is_ready(the_pod(cluster, name))

    (before, _), (of_dns, _) = restarts(), restarts("kube-dns-node-0")
    cluster.process("kube-scheduler").kill()
    eventually(restarts, expected=(before + 1, True))
    cluster.restart_kubelet()
    eventually(lambda: restarts("kube-dns-node-0"), expected=(of_dns + 1, True))
    assert restarts() == (before + 1, True)
