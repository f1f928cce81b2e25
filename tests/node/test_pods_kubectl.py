"""What people do with kubectl, against a local cluster."""

import secrets

import pytest
import yaml

from .clusters import eventually, pod


def test_get_shows_a_pod_with_its_address_and_node(cluster, pods):
    created = pods.running(pod("sleep 600"))
    line = cluster.kubectl("get", "pod", created["metadata"]["name"], "-o", "wide", "--no-headers").split()
    assert line[:4] == [created["metadata"]["name"], "1/1", "Running", "0"]
    assert {created["status"]["podIP"], created["spec"]["nodeName"]} <= set(line)


def test_describe_tells_what_the_kubelet_did(cluster, pods):
    created = pods.finish(pod("exit 3"))
    name = created["metadata"]["name"]
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
    created = pods.running(pod("sleep 600", main=main))
    text = cluster.kubectl("describe", "node", created["spec"]["nodeName"])
    assert any("123m" in line and created["metadata"]["name"] in line for line in text.splitlines())


def test_apply_changes_what_is_there_and_names_a_misspelt_field(cluster):
    name = f"settings-{secrets.token_hex(3)}"
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"epochs": "3"}}
    assert "created" in cluster.kubectl("apply", "-f", "-", stdin=manifest)
    assert "configured" in cluster.kubectl("apply", "-f", "-", stdin=manifest | {"data": {"epochs": "4"}})
    assert yaml.safe_load(cluster.kubectl("get", "configmap", name, "-o", "yaml"))["data"] == {"epochs": "4"}
    with pytest.raises(AssertionError, match='unknown field "dta"'):
        cluster.kubectl("apply", "-f", "-", stdin=manifest | {"dta": {}})


def test_a_pod_larger_than_any_node_stays_pending_with_the_schedulers_words(cluster, pods):
    main = {"resources": {"requests": {"memory": "100Ti"}}}
    name = pods.create(pod("true", main=main))
    created = pods.until(name, lambda pod: pod["status"].get("conditions"))
    assert created["status"]["phase"] == "Pending"
    condition = created["status"]["conditions"][0]
    assert condition["reason"] == "Unschedulable"
    assert "0/2 nodes are available: 2 Insufficient memory" in condition["message"]
    assert "Insufficient memory" in cluster.kubectl("describe", "pod", name)
