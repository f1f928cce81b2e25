"""Names, Services and the API as pods reach them."""

import secrets

import pytest

from .clusters import is_ready, pod, python, state

GREET = """
import http.server, os
class Greeter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["HOSTNAME"].encode())
http.server.HTTPServer(("", 8080), Greeter).serve_forever()
"""
ASK = """
import socket, sys, time, urllib.request
end = time.monotonic() + 60
for url in sys.argv[1:]:
    while True:
        try:
            print(urllib.request.urlopen(url, timeout=120).read().decode())
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
"""
ASK_ALL = """
import sys, time, urllib.request
end, missing = time.monotonic() + 60, set(sys.argv[2:])
while missing and time.monotonic() < end:
    try:
        answer = urllib.request.urlopen(sys.argv[1], timeout=120).read().decode()
    except OSError as error:
        print(error, file=sys.stderr)
        time.sleep(0.1)
        continue
    print(answer)
    missing.discard(answer)
"""
LOOK_UP = """
import socket, sys
for address in sys.argv[1:]:
    socket.socket().connect_ex((address, 53))
for line in open("/proc/net/arp"):
    if line.split()[0] in sys.argv[1:]:
        print(line.split()[0], line.split()[3])
"""
CALL_API = """
import json, ssl, sys, urllib.error, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount"
context = ssl.create_default_context(cafile=f"{place}/ca.crt")
headers = {"Authorization": "Bearer " + open(f"{place}/token").read()} if sys.argv[1] == "known" else {}
url = "https://kubernetes.default.svc/api/v1/namespaces/default/pods"
request = urllib.request.Request(url, headers=headers)
try:
    print(urllib.request.urlopen(request, context=context, timeout=120).status)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["message"])
"""


@pytest.fixture(scope="module")
def greeters(cluster):
    """Three pods behind a Service and a headless one; the name of both."""
    from .clusters import Pods

    name = f"greet-{secrets.token_hex(3)}"
    ports = [{"port": 80, "targetPort": 8080, "name": "http"}]
    for service, spec in ((name, {}), (f"{name}-each", {"clusterIP": "None"})):
        spec = {"selector": {"app": name}, "ports": ports} | spec
        cluster.core.create_namespaced_service("default", {"metadata": {"name": service}, "spec": spec})
    with Pods(cluster) as pods:
        running = [
            pods.create(
                pod(
                    main=python(GREET),
                    labels={"app": name},
                    hostname=f"greeter-{index}",
                    subdomain=f"{name}-each",
                )
            )
            for index in range(2)
        ]
        for server in running:
            pods.until(server, is_ready)
        yield name
    for service in (name, f"{name}-each"):
        cluster.core.delete_namespaced_service(service, "default")


def fetch(pods, *urls):
    return pods.output(pod(main=python(ASK) | {"args": list(urls)})).split()


def test_a_service_is_reached_by_each_form_of_its_name(pods, greeters):
    forms = ("", ".default", ".default.svc", ".default.svc.cluster.local")
    answers = fetch(pods, *(f"http://{greeters}{form}/" for form in forms))
    assert len(answers) == 4 and set(answers) <= {"greeter-0", "greeter-1"}


def test_a_service_is_reached_by_its_address_and_spreads_over_its_pods(pods, cluster, greeters):
    address = cluster.core.read_namespaced_service(greeters, "default").spec.cluster_ip
    main = python(ASK_ALL)
    answers = pods.output(pod(main=main | {"args": [f"http://{address}/", "greeter-0", "greeter-1"]})).split()
    assert set(answers) == {"greeter-0", "greeter-1"}


def test_each_pod_of_a_headless_service_has_a_name_of_its_own(pods, greeters):
    urls = [f"http://greeter-{index}.{greeters}-each:8080/" for index in range(2)]
    assert fetch(pods, *urls) == ["greeter-0", "greeter-1"]


def test_a_pod_has_the_resolver_and_the_name_that_it_asks_for(pods):
    config = {"nameservers": ["192.0.2.53"], "searches": ["lab.example"], "options": [{"name": "rotate"}]}
    spec = {"dnsPolicy": "None", "dnsConfig": config, "subdomain": "team", "setHostnameAsFQDN": True}
    full = "anna.team.default.svc.cluster.local"
    output = pods.output(pod("cat /etc/resolv.conf; hostname; head -1 /etc/hosts", hostname="anna", **spec))
    assert output.splitlines() == [
        "search lab.example",
        "nameserver 192.0.2.53",
        "options rotate",
        full,
        "# Kubernetes-managed hosts file.",
    ]


@pytest.mark.namespaces
def test_a_pod_with_default_dns_resolves_names_of_the_machines_server(pods):
    script = (
        "grep nameserver /etc/resolv.conf; getent hosts kubernetes.default.svc.cluster.local || echo none"
    )
    assert pods.output(pod(script, dnsPolicy="Default")).splitlines() == ["nameserver 10.244.255.254", "none"]


def test_a_pod_may_do_what_its_account_is_given(pods, cluster):
    cluster.kubectl("create", "serviceaccount", "reader")
    cluster.kubectl(
        "create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader"
    )
    manifest = pod(main=python(CALL_API) | {"args": ["known"]}, serviceAccountName="reader")
    assert pods.output(manifest) == "200\n"


def test_pods_reach_each_other_by_address_and_are_on_the_network_of_their_node(pods):
    server = pods.running(pod(main=python(GREET), hostname="alone"))
    address, node = server["status"]["podIP"], server["spec"]["nodeName"]
    assert address.startswith(f"10.244.{int(node.removeprefix('node-')) + 1}.")
    assert fetch(pods, f"http://{address}:8080/") == ["alone"]
    assert "running" in state(server)


@pytest.mark.namespaces
def test_a_pod_keeps_its_hardware_address_as_others_come_and_go(pods):
    lasting_ip = pods.running(pod("sleep 600"))["status"]["podIP"]
    suffix = "".join(f":{int(part):02x}" for part in lasting_ip.split("."))
    hardware_addresses = {"10.244.0.1": "0a:58:0a:f4:00:01", lasting_ip: f"0a:58{suffix}"}
    for _ in range(3):  # each brings a port to the bridge, and takes it away
        output = pods.output(pod(main=python(LOOK_UP) | {"args": list(hardware_addresses)}))
        assert dict(line.split() for line in output.splitlines()) == hardware_addresses
