"""The networks of nodes: pods that share one, ports that pods publish on it, and NodePorts."""

import secrets
from contextlib import contextmanager

import pytest

from .clusters import Pods, localkube, on_node, pod, python

# Answers TCP and UDP on the port of its first argument with its second.
SERVE = """
import socket, socketserver, sys, threading
port, name = int(sys.argv[1]), sys.argv[2].encode()
class Tcp(socketserver.StreamRequestHandler):
    def handle(self):
        self.request.sendall(name)
class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        self.request[1].sendto(name, self.client_address)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
servers = [Server(("", port), Tcp), socketserver.ThreadingUDPServer(("", port), Udp)]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
"""
# Asks all of "tcp:ADDRESS:PORT" and "udp:…" at once, each until it answers; "!" before it: it must not.
ASK = """
import socket, sys, time
from concurrent.futures import ThreadPoolExecutor
def request(word):
    kind, host, port = word.split(":")
    with socket.socket(type=socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        sock.connect((host, int(port)))
        if kind == "udp":
            sock.send(b"who")
        return sock.recv(100).decode()
def reply(word):
    end = time.monotonic() + (3 if word[0] == "!" else 60)
    while time.monotonic() < end:
        try:
            return request(word.lstrip("!"))
        except OSError:
            time.sleep(0.1)
    return "nothing"
with ThreadPoolExecutor(20) as pool:
    print(*pool.map(reply, sys.argv[1:]))
"""
NODES = ("10.244.254.1", "10.244.254.2")


def server(port, name, **spec):
    """Return the manifest of a pod that answers on a port with its name, and is ready once it does."""
    main = python(SERVE) | {
        "args": [str(port), name],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
    }
    main |= spec.pop("main", {})
    return pod(main=main, **spec)


def replies(pods, *words, **spec):
    return pods.output(pod(main=python(ASK) | {"args": list(words)}, **spec)).split()


def ports_of(cluster, name):
    return {port.name: port for port in cluster.core.read_namespaced_service(name, "default").spec.ports}


@contextmanager
def service(cluster, **spec):
    """Make a Service for pods with its label, and yield its name."""
    name = f"ports-{secrets.token_hex(3)}"
    ports = [
        {"name": kind.lower(), "port": 80, "targetPort": 8080, "protocol": kind} for kind in ("TCP", "UDP")
    ]
    spec = {"selector": {"app": name}, "ports": ports} | spec
    cluster.core.create_namespaced_service("default", {"metadata": {"name": name}, "spec": spec})
    yield name
    cluster.core.delete_namespaced_service(name, "default")


def test_pods_in_the_networks_of_two_nodes_have_the_same_port(pods):
    for index in range(2):
        running = pods.running(server(8080, f"on-{index}", hostNetwork=True, **on_node(index)))
        assert running["status"]["podIP"] == running["status"]["hostIP"] == NODES[index]
    words = [f"{kind}:{node}:8080" for kind in ("tcp", "udp") for node in NODES]
    assert replies(pods, *words) == ["on-0", "on-1"] * 2
    assert (
        replies(pods, "tcp:127.0.0.1:8080", "udp:127.0.0.1:8080", hostNetwork=True, **on_node(1))
        == ["on-1"] * 2
    )


@pytest.mark.namespaces
def test_a_pod_in_its_nodes_network_reaches_pods_and_services_by_tcp_and_udp(cluster, pods):
    with service(cluster) as name:
        running = pods.running(server(8080, "pod", labels={"app": name}))
        address = cluster.core.read_namespaced_service(name, "default").spec.cluster_ip
        words = [
            f"{kind}:{at}"
            for at in (f"{running['status']['podIP']}:8080", f"{address}:80")
            for kind in ("tcp", "udp")
        ]
        assert replies(pods, *words, hostNetwork=True) == ["pod"] * 4
        by_name = replies(pods, f"udp:{name}:80", hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
        assert by_name == ["pod"]


def test_a_pod_in_its_nodes_network_has_its_name_and_none_of_the_clusters_loopback(pods):
    script = "hostname; cat /etc/hosts | head -1; cat /proc/net/dev | grep -c pod"
    name, hosts, interfaces = pods.output(
        pod(f"{script} || true", hostNetwork=True, **on_node(1))
    ).splitlines()
    assert (name, interfaces) == ("node-1", "0")
    assert hosts == "# Kubernetes-managed hosts file (host network)."


@pytest.mark.namespaces
def test_a_port_of_the_node_is_the_pods_by_address_and_protocol(pods):
    same = {"hostPort": 54321, "containerPort": 8080}
    for name, port in {
        "loopback": {"hostIP": "127.0.0.1"},
        "node": {"hostIP": NODES[0]},
        "udp": {"hostIP": NODES[0], "protocol": "UDP"},
    }.items():
        pods.running(server(8080, name, main={"ports": [same | port]}, **on_node(0)))
    words = ["tcp:127.0.0.1:54321", f"tcp:{NODES[0]}:54321", f"udp:{NODES[0]}:54321"]
    assert replies(pods, *words, hostNetwork=True, **on_node(0)) == ["loopback", "node", "udp"]
    assert replies(pods, *words[1:], f"!tcp:{NODES[1]}:54321", **on_node(1)) == ["node", "udp", "nothing"]


def test_a_port_of_the_node_ends_with_its_pod(pods):
    ports = [{"hostPort": 54322, "containerPort": 8080}]
    first = pods.running(server(8080, "first", main={"ports": ports}, **on_node(0)))["metadata"]["name"]
    assert replies(pods, f"tcp:{NODES[0]}:54322") == ["first"]
    pods.cluster.core.delete_namespaced_pod(first, "default", grace_period_seconds=0)
    pods.gone(first)
    assert replies(pods, f"!tcp:{NODES[0]}:54322") == ["nothing"]
    pods.running(server(8080, "second", main={"ports": ports}, **on_node(0)))
    assert replies(pods, f"tcp:{NODES[0]}:54322") == ["second"]


@pytest.mark.namespaces
def test_a_node_port_is_on_every_node_and_goes_with_the_services_type(cluster, pods):
    with service(cluster, type="NodePort") as name:
        pods.running(server(8080, "pod", labels={"app": name}))
        numbers = {kind: port.node_port for kind, port in ports_of(cluster, name).items()}
        words = [f"{kind}:{node}:{numbers[kind]}" for kind in ("tcp", "udp") for node in NODES]
        assert replies(pods, *words) == ["pod"] * 4
        cluster.core.patch_namespaced_service(name, "default", {"spec": {"type": "ClusterIP"}})
        assert replies(pods, *(f"!{word}" for word in words[:2]), f"tcp:{name}:80") == [
            "nothing",
            "nothing",
            "pod",
        ]


@pytest.mark.namespaces
def test_traffic_stays_on_the_node_where_the_service_says_so(cluster, pods):
    local = {"type": "NodePort", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}
    with service(cluster, **local) as name:
        pods.running(server(8080, "here", labels={"app": name}, **on_node(0)))
        number = ports_of(cluster, name)["tcp"].node_port
        words = [f"tcp:{NODES[0]}:{number}", f"tcp:{name}:80", f"!tcp:{NODES[1]}:{number}"]
        assert replies(pods, *words, **on_node(0)) == ["here", "here", "nothing"]
        assert replies(pods, f"!tcp:{name}:80", **on_node(1)) == ["nothing"]


@pytest.mark.namespaces
def test_a_pod_in_an_isolated_nodes_network_is_cut_off_with_it(cluster, pods):
    pods.running(server(8080, "cut", hostNetwork=True, **on_node(1)))
    assert replies(pods, f"tcp:{NODES[1]}:8080", **on_node(0)) == ["cut"]
    localkube("node", "isolate", cluster.name, "node-1", home=cluster.home)
    try:
        assert replies(pods, f"!tcp:{NODES[1]}:8080", **on_node(0)) == ["nothing"]
    finally:
        localkube("node", "reconnect", cluster.name, "node-1", home=cluster.home)
    with Pods(cluster) as later:
        later.until(
            later.create(pod("true", **on_node(1))), lambda item: item["status"]["phase"] == "Succeeded"
        )
        assert replies(later, f"tcp:{NODES[1]}:8080", **on_node(0)) == ["cut"]
