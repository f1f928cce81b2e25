"""What people do with kubectl, against a local cluster."""

import secrets

import pytest
import yaml

from .clusters import PATIENCE, eventually, pod


@pytest.fixture
def deployment(cluster):
    """A Deployment of one pod that says who it is; deleted after the test."""
    name = f"web-{secrets.token_hex(3)}"
    template = pod("echo up; exec sleep 600", labels={"app": name}, restartPolicy="Always")
    del template["metadata"]["generateName"], template["apiVersion"], template["kind"]
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    available(cluster, name, 1)
    yield name
    cluster.kubectl("delete", "deployment", name, "--cascade=foreground", f"--timeout={PATIENCE}s")
    assert not pods_of(cluster, name)


def available(cluster, name, count):
    condition = f"--for=jsonpath={{.status.availableReplicas}}={count}"
    cluster.kubectl("wait", condition, f"deployment/{name}", f"--timeout={PATIENCE}s")


def pods_of(cluster, name):
    return cluster.kubectl("get", "pods", "-l", f"app={name}", "-o", "name").split()


def test_get_shows_a_pod_with_its_address_and_node(cluster, pods):
    made = pods.running(pod("sleep 600"))
    line = cluster.kubectl("get", "pod", made["metadata"]["name"], "-o", "wide", "--no-headers").split()
    assert line[:4] == [made["metadata"]["name"], "1/1", "Running", "0"]
    assert {made["status"]["podIP"], made["spec"]["nodeName"]} <= set(line)


def test_get_shows_nodes_that_are_ready(cluster):
    lines = [line.split() for line in cluster.kubectl("get", "nodes", "--no-headers").splitlines()]
    assert [line[:2] for line in lines] == [["node-0", "Ready"], ["node-1", "Ready"]]
    assert all(line[-1].startswith("v1.36.") for line in lines)


def test_describe_tells_what_the_kubelet_did(cluster, pods):
    made = pods.finish(pod("exit 3"))
    name = made["metadata"]["name"]
    assert "Exit Code:    3" in cluster.kubectl("describe", "pod", name)
    # Events are sent beside the status, and may come after it.
    eventually(lambda: "Started" in cluster.kubectl("describe", "pod", name).partition("Events:")[2])
    events = cluster.kubectl("describe", "pod", name).partition("Events:")[2]
    assert "Scheduled" in events
    assert "kubelet" in events


def test_events_tell_of_the_end_of_a_pod(cluster, pods):
    name = pods.running(pod("sleep 600"))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name)
    eventually(lambda: "Killing" in cluster.kubectl("events", "--for", f"pod/{name}"))


def test_describe_of_a_node_counts_what_its_pods_ask_for(cluster, pods):
    main = {"resources": {"requests": {"cpu": "123m", "memory": "32Mi"}}}
    made = pods.running(pod("sleep 600", main=main))
    text = cluster.kubectl("describe", "node", made["spec"]["nodeName"])
    assert any("123m" in line and made["metadata"]["name"] in line for line in text.splitlines())


def test_apply_changes_what_is_there_and_names_a_misspelt_field(cluster):
    name = f"settings-{secrets.token_hex(3)}"
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"epochs": "3"}}
    assert "created" in cluster.kubectl("apply", "-f", "-", stdin=manifest)
    assert "configured" in cluster.kubectl("apply", "-f", "-", stdin=manifest | {"data": {"epochs": "4"}})
    assert yaml.safe_load(cluster.kubectl("get", "configmap", name, "-o", "yaml"))["data"] == {"epochs": "4"}
    with pytest.raises(AssertionError, match='unknown field "dta"'):
        cluster.kubectl("apply", "-f", "-", stdin=manifest | {"dta": {}})


def test_a_deployment_scales_up_and_down(cluster, deployment):
    cluster.kubectl("scale", "deployment", deployment, "--replicas=3")
    available(cluster, deployment, 3)
    assert len(pods_of(cluster, deployment)) == 3
    cluster.kubectl("scale", "deployment", deployment, "--replicas=1")
    available(cluster, deployment, 1)


def test_a_deployment_replaces_a_pod_that_is_deleted(cluster, deployment):
    (before,) = pods_of(cluster, deployment)
    cluster.kubectl("delete", before)
    available(cluster, deployment, 1)
    assert pods_of(cluster, deployment) != [before]


def test_a_deployment_rolls_out_a_change(cluster, deployment):
    cluster.kubectl("set", "env", f"deployment/{deployment}", "VERSION=2")
    cluster.kubectl("rollout", "status", f"deployment/{deployment}", f"--timeout={PATIENCE}s")
    variables = "jsonpath={.items[*].spec.containers[0].env[?(@.name=='VERSION')].value}"
    assert cluster.kubectl("get", "pods", "-l", f"app={deployment}", "-o", variables) == "2"


def test_a_pod_larger_than_any_node_stays_pending_with_the_schedulers_words(cluster, pods):
    main = {"resources": {"requests": {"memory": "100Ti"}}}
    name = pods.create(pod("true", main=main))
    made = pods.until(name, lambda pod: pod["status"].get("conditions"))
    assert made["status"]["phase"] == "Pending"
    condition = made["status"]["conditions"][0]
    assert condition["reason"] == "Unschedulable"
    assert "0/2 nodes are available: 2 Insufficient memory" in condition["message"]
    assert "Insufficient memory" in cluster.kubectl("describe", "pod", name)


def test_a_job_of_indexed_pods_completes(cluster):
    name = f"job-{secrets.token_hex(3)}"
    template = pod("echo rank $JOB_COMPLETION_INDEX on $(hostname)")
    spec = {
        "completions": 4,
        "parallelism": 4,
        "completionMode": "Indexed",
        "template": {"spec": template["spec"]},
    }
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    cluster.kubectl("wait", "--for=condition=Complete", f"job/{name}", f"--timeout={PATIENCE}s")
    lines = cluster.kubectl("logs", "-l", f"job-name={name}").splitlines()
    assert sorted(lines) == [f"rank {rank} on {name}-{rank}" for rank in range(4)]
    cluster.kubectl("delete", "job", name, f"--timeout={PATIENCE}s")


def test_deleting_by_label_leaves_the_others(cluster, pods):
    mine, other = (pods.running(pod("sleep 600", labels={"of": word})) for word in ("mine", "others"))
    cluster.kubectl("delete", "pods", "-l", "of=mine", f"--timeout={PATIENCE}s")
    names = cluster.kubectl("get", "pods", "-o", "name")
    assert mine["metadata"]["name"] not in names
    assert other["metadata"]["name"] in names
