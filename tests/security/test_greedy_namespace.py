"""On a real cluster: one namespace floods whatever all share, and another one's pod waits for nothing."""

import json
from pathlib import Path

import pytest

from ..node.clusters import pod, python

pytestmark = pytest.mark.namespaces
PATIENCE = 3.0  # seconds: one lost SYN is sent again after one
# Thousands of datagrams through eight ports of a Service, connections through it and to nobody, questions to
# both name servers, each from a process of its own.
GREEDY = """
import contextlib, os, resource, socket, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
web = os.environ["WEB_SERVICE_HOST"]

def datagrams():
    made = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(1500)]
    while True:
        for sender in made:
            for port in range(5000, 5008):
                sender.sendto(b"x", (web, port))

def connections(address, port):
    kept = []
    while True:
        with contextlib.suppress(OSError):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex((address, port))
            kept.append(client)
        if len(kept) > 1500:
            kept.pop(0).close()
        time.sleep(0.0005)

def questions(server, name):
    asking = socket.socket(type=socket.SOCK_DGRAM)
    head, tail = b"\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\x08", name + b"\\0\\0\\1\\0\\1"
    number = 0
    while True:
        number += 1
        asking.sendto((number % 65536).to_bytes(2) + head + b"%08d" % (number % 10**8) + tail, (server, 53))

listener = socket.create_server(("", 4999), backlog=1)
works = [
    (datagrams,), (connections, web, 4999), (connections, "192.0.2.1", 80), (connections, "10.244.0.1", 6443),
    (questions, "10.244.0.1", b"\\7default\\3svc\\7cluster\\5local"),
    (questions, "10.244.255.254", b"\\7example"),
]
for work, *arguments in works:
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            work(*arguments)
        os._exit(0)
print("greedy", flush=True)
time.sleep(600)
"""
MEASURE = """
import json, socket, time
NAME = b"\\nkubernetes\\7default\\3svc\\7cluster\\5local\\0"
QUESTION = b"\\0\\7\\1\\0\\0\\1" + bytes(6) + NAME + b"\\0\\1\\0\\1"

def name():
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        asking.sendto(QUESTION, ("10.244.0.1", 53))
        asking.recv(512)

def service():
    with socket.create_connection((socket.gethostbyname("calm"), 80), 5) as client:
        client.settimeout(5)
        client.recv(5)

def timed(act):
    began = time.monotonic()
    try:
        act()
    except OSError:
        return 99.0
    return time.monotonic() - began

longest = {}
for _ in range(20):
    for act in (name, service):
        longest[act.__name__] = max(longest.get(act.__name__, 0.0), timed(act))
    time.sleep(0.05)
print(json.dumps(longest))
"""
SERVE = """
import socket
listener = socket.create_server(("", 8080))
while True:
    client, _ = listener.accept()
    client.sendall(b"hello")
    client.close()
"""


def service(name, selector, *ports):
    listed = [
        {"name": f"p{port}", "port": port, "targetPort": target, "protocol": protocol}
        for port, target, protocol in ports
    ]
    spec = {"selector": {"app": selector}, "ports": listed}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def ada(cluster):
    """Yield what applies an object in the attendee's namespace, which is deleted."""
    cluster.kubectl("create", "namespace", "ada")
    cluster.kubectl("label", "namespace", "ada", "pod-security.kubernetes.io/enforce=baseline")
    cluster.kubectl("wait", "-n", "ada", "--for=create", "serviceaccount/default", "--timeout=60s")
    yield lambda manifest: cluster.kubectl("-n", "ada", "apply", "-f", "-", stdin=manifest)
    cluster.kubectl("delete", "namespace", "ada", "--grace-period=0", "--force")


def test_a_greedy_namespace_keeps_no_other_pod_waiting_and_the_kubelet_alive(cluster, pods, ada):
    cluster.kubectl("apply", "-f", "-", stdin=service("calm", "calm", (80, 8080, "TCP")))
    try:
        pods.running(pod(labels={"app": "calm"}, main=python(SERVE)))
        datagrams = [(port, port, "UDP") for port in range(5000, 5008)]
        ada(service("web", "greedy", (4999, 4999, "TCP"), *datagrams))
        ada(pod(name="greedy", labels={"app": "greedy"}, main=python(GREEDY)))
        cluster.kubectl("-n", "ada", "wait", "pod/greedy", "--for=condition=Ready", "--timeout=60s")
        before = cluster.process("localkube.kubelet")
        longest = json.loads(pods.output(pod(main=python(MEASURE))))
        assert all(seconds < PATIENCE for seconds in longest.values()), longest
        assert cluster.process("localkube.kubelet") == before
        limits = Path(f"/proc/{before.pid}/limits").read_text().splitlines()
        hard = next(int(line.split()[4]) for line in limits if line.startswith("Max open files"))
        assert before.num_fds() < hard / 2
    finally:
        cluster.kubectl("delete", "service", "calm")


OPEN = """
import resource, select, socket, sys
address, port, attempts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
poll, waiting, answered = select.epoll(), {}, 0
for _ in range(attempts):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((address, port))
    waiting[client.fileno()] = client
    poll.register(client, select.EPOLLOUT | select.EPOLLONESHOT)
while events := poll.poll(0.5):
    answered += len(events)
print(answered)
"""


@pytest.mark.parametrize(
    ("address", "attempts", "most"), [("10.244.0.1:6443", 1500, 600), ("10.244.255.254:9", 3000, 1300)]
)
def test_a_pod_cannot_open_connections_without_end(cluster, pods, address, attempts, most):
    arguments = [*address.split(":"), str(attempts)]
    container = python(OPEN)
    container["command"] += arguments
    assert 0 < int(pods.output(pod(main=container))) < most
