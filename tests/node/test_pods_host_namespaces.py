"""Pods in the namespaces of their node, and RuntimeClasses."""

import pytest
from kubernetes import client

from .clusters import pod, python


def test_a_pod_in_the_nodes_network_is_adopted_by_the_next_kubelet(cluster, pods):
    name = pods.running(pod("exec sleep 600", hostNetwork=True))["metadata"]["name"]
    cluster.restart_kubelet()
    cluster.core.delete_namespaced_pod(name, "default")
    pods.wait_for_event(name, "Killing", "Stopping container main")
    pods.gone(name)


def test_pods_with_the_nodes_ipc_share_its_queues(pods):
    make = "import ctypes; print(ctypes.CDLL(None).shmget(4711, 4096, 0o1666))"
    find = "import ctypes; print(ctypes.CDLL(None).shmget(4711, 0, 0))"
    first = pods.output(pod(main=python(make), hostIPC=True))
    assert pods.output(pod(main=python(find), hostIPC=True)) == first
    assert pods.output(pod(main=python(find))) == "-1\n"


def test_a_pod_with_the_nodes_processes_sees_them_and_can_end_none(pods):
    script = """
        tr '\\0' ' ' < /proc/1/cmdline; echo
        kill -9 1
        for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline 2> /dev/null; echo; done
    """
    output = pods.output(pod(script, hostPID=True))
    assert "localkube/runtime/init.py" in output.splitlines()[0]
    assert "kube-apiserver" in output
    assert "Operation not permitted" in output


@pytest.fixture
def runtime_class(cluster):
    api = client.NodeV1Api(cluster._api)
    names = []

    def make(name, handler):
        api.create_runtime_class({"metadata": {"name": name}, "handler": handler})
        names.append(name)
        return name

    yield make
    for name in names:
        api.delete_runtime_class(name)


def test_a_pod_of_a_runtime_class_of_this_runtime_runs(pods, runtime_class):
    pods.output(pod("true", runtimeClassName=runtime_class("plain", "runc")))


def test_the_node_lists_its_runtime_handlers(cluster):
    (node, *_) = cluster.core.list_node().items
    names = [handler.name for handler in node.status.runtime_handlers]
    assert names[:2] == ["", "runc"]
