"""NetworkPolicies in force between real pods, by their addresses, by Services, by names and by nodes."""

import secrets
from contextlib import contextmanager

import pytest

from ..patience import eventually
from .clusters import on_node, pod, python
from .test_pods_host_network import NODES, SERVE, ports_of, replies, service

# What a container does at once, before anything can have confined it late.
FIRST_ACT = """
import socket
asked = socket.socket()
asked.settimeout(2)
print("closed" if asked.connect_ex(("10.244.0.1", 53)) else "open")
"""


@contextmanager
def policy(cluster, **spec):
    """Make a NetworkPolicy in ``default``, and delete it; when it is in force the API does not say."""
    name = f"policy-{secrets.token_hex(3)}"
    body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
    cluster.kubectl("create", "-f", "-", stdin=body | {"spec": spec})
    try:
        yield
    finally:
        cluster.kubectl("delete", "networkpolicy", name)


@pytest.fixture(scope="module")
def web(cluster):
    """The address of a server, its Service, and the Service's NodePorts."""
    from .clusters import Pods

    with service(cluster, type="NodePort") as name, Pods(cluster) as pods:
        probes = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
        main = python(SERVE) | {"args": ["8080", "web"], "readinessProbe": probes, "livenessProbe": probes}
        running = pods.running(pod(main=main, labels={"app": name}, **on_node(0)))
        number = ports_of(cluster, name)["tcp"].node_port
        yield running["status"]["podIP"], name, number, running["metadata"]["name"]


def ways(web):
    address, name, number, _ = web
    return [
        f"tcp:{address}:8080",
        f"udp:{address}:8080",
        f"tcp:{name}:80",
        f"udp:{name}:80",
        f"tcp:{NODES[1]}:{number}",
    ]


def never(words):
    return [f"!{word}" for word in words]


def in_force(pods, *words, expected, **spec):
    """Ask until a policy that was just made, or deleted, shows in the answers."""
    eventually(lambda: replies(pods, *words, **spec), expected=expected)


def test_denied_ingress_is_dropped_on_every_path(cluster, pods, web):
    friends = [{"podSelector": {"matchLabels": {"role": "friend"}}}]
    with policy(cluster, podSelector={"matchLabels": {"app": web[1]}}, ingress=[{"from": friends}]):
        in_force(pods, *never(ways(web)), expected=["nothing"] * 5)
        assert replies(pods, *ways(web), labels={"role": "friend"}) == ["web"] * 5
        # Its probes and the API server come from its node.
        web_pod = pods.until(web[3], lambda item: item["status"]["containerStatuses"][0]["ready"])
        assert web_pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert cluster.kubectl("exec", web[3], "--", "echo", "reached") == "reached\n"
    assert replies(pods, *ways(web)) == ["web"] * 5


@pytest.mark.slow
def test_a_pod_that_calls_itself_another_ones_mirror_does_not_lift_its_policy(cluster, pods, web):
    uid = cluster.core.read_namespaced_pod(web[3], "default").metadata.uid
    forged = pod(name="forged", nodeName="node-0", annotations={"kubernetes.io/config.mirror": uid})
    forged["metadata"]["finalizers"] = ["example.com/stay"]
    try:
        with policy(cluster, podSelector={"matchLabels": {"app": web[1]}}):
            cluster.kubectl("create", "-f", "-", stdin=forged)
            cluster.kubectl("wait", "pod/forged", "--for=jsonpath={.metadata.deletionTimestamp}")
            in_force(pods, *never(ways(web)), expected=["nothing"] * 5)
    finally:
        cluster.kubectl("patch", "pod/forged", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_denied_egress_is_dropped_including_dns(cluster, pods, web):
    mine = {"matchLabels": {"role": "confined"}}
    dns = {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}
    dns["ports"] = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    server = {"to": [{"podSelector": {"matchLabels": {"app": web[1]}}}], "ports": [{"port": 8080}]}
    tcp, udp, by_name, udp_by_name, _ = ways(web)
    with policy(cluster, podSelector=mine, policyTypes=["Egress"], egress=[server]):
        targets = [tcp, *never([udp, by_name])]
        in_force(pods, *targets, expected=["web", "nothing", "nothing"], labels={"role": "confined"})
    with policy(cluster, podSelector=mine, policyTypes=["Egress"], egress=[server, dns]):
        targets = [tcp, by_name, *never([udp, udp_by_name])]
        in_force(pods, *targets, expected=["web", "web", "nothing", "nothing"], labels={"role": "confined"})


def test_a_pod_is_confined_before_it_starts_and_knows_those_that_come_later(cluster, pods):
    with policy(cluster, podSelector={"matchLabels": {"role": "late"}}, policyTypes=["Egress"]):
        assert pods.output(pod(main=python(FIRST_ACT), labels={"role": "late"})) == "closed\n"
    assert pods.output(pod(main=python(FIRST_ACT), labels={"role": "late"})) == "open\n"
    friends = [{"podSelector": {"matchLabels": {"role": "later"}}}]
    main = python(SERVE) | {
        "args": ["8080", "first"],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    with policy(cluster, podSelector={"matchLabels": {"role": "first"}}, ingress=[{"from": friends}]):
        running = pods.running(pod(main=main, labels={"role": "first"}))
        assert replies(pods, f"tcp:{running['status']['podIP']}:8080", labels={"role": "later"}) == ["first"]


def test_the_next_kubelet_keeps_the_rules_of_existing_policies(cluster, pods, web):
    kubelet = cluster.process("localkube.kubelet")
    with policy(cluster, podSelector={"matchLabels": {"app": web[1]}}):
        in_force(pods, *never(ways(web)[:1]), expected=["nothing"])
        kubelet.kill()
        assert replies(pods, *never(ways(web)[:1])) == ["nothing"]
        cluster.process("localkube.kubelet").kill()
    assert replies(pods, *ways(web)) == ["web"] * 5
